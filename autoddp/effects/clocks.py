"""Clocks: all ranks read rank 0's time, so that time limits and time stamps agree."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from time import localtime as _localtime
from time import time as _time  # this rank's
from typing import Any, ClassVar

from autoddp.effects.effect_feature import EffectFeature, EffectRow, ask
from autoddp.effects.ownership import decides, whose
from autoddp.effects.who_acts import Mode
from autoddp.patching import patch, stands_for

WHY = "the script may decide by the time, so all ranks get rank 0's"
NAMES = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
CLOCKS = (*(f"time:{name}{unit}" for name in NAMES for unit in ("", "_ns")), "timeit:default_timer")
CONVERTERS = tuple(f"time:{f}" for f in ("localtime", "gmtime", "ctime", "asctime", "strftime"))


class Clocks(EffectFeature):
    """The feature for clocks: the script's thread reads rank 0's, whoever asks there."""

    name: ClassVar[str] = "clocks"
    without: ClassVar[str] = "each rank reads its own clock, and may decide differently by it"
    rows: ClassVar[tuple[EffectRow, ...]] = (
        ask(("time:clock_gettime", "time:clock_gettime_ns", "os:times"), why=WHY),
    )

    @patch(*CLOCKS, why=WHY, hot=True)
    def read(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Make a clock that reads rank 0's; a compiler, a thread and a worker read their own."""
        effects, common, frame, name = self.effects, decides, sys._getframe, original.__name__

        @stands_for(original)
        def read() -> Any:
            if common(frame(1).f_code.co_filename) and effects.mode(by=whose) is Mode.SYNCED:
                return effects.ask_rank0(name, original)
            return original()

        return read

    @patch(*CONVERTERS, why=WHY, hot=True)
    def convert(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that converts rank 0's current time, if no time is given."""
        name = original.__name__
        format, broken_down = name == "strftime", name in ("strftime", "asctime")  # comes first

        @stands_for(original)
        def convert(*args: Any) -> Any:
            if args[format:] not in ((), (None,)) or not self._decides():
                return original(*args)
            present = self.effects.ask_rank0(name, _time)
            return original(*args[:format], _localtime(present) if broken_down else present)

        return convert

    @patch("datetime:datetime.now", "datetime:datetime.utcnow", why=WHY, hot=True)
    def date(self, original: Any) -> Any:
        """Make a `now` that reads rank 0's clock; `today` calls `time.time`, and needs no patch."""
        utc = original.__name__ == "utcnow"

        @stands_for(original)
        def now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
            present = self.effects.ask_rank0("now", _time) if self._decides() else _time()
            result = cls.fromtimestamp(present, UTC if utc else tz)
            return result.replace(tzinfo=None) if utc else result

        return classmethod(now)

    def _decides(self) -> bool:
        """Return whether the caller gets rank 0's time; all ranks come here in one order then."""
        common = decides(sys._getframe(2).f_code.co_filename)
        return common and self.effects.mode(by=whose) is Mode.SYNCED
