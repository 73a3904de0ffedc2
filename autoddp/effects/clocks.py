"""Clocks that the script reads show rank 0's time, so that budgets and time stamps agree."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from time import localtime as _localtime
from time import time as _time  # this rank's
from typing import Any, ClassVar

from autoddp.effects.engine import Mode
from autoddp.effects.outward import EffectRow, Outward, ask
from autoddp.effects.ownership import decides
from autoddp.patching import patch, stands_for

WHY = "the script decides by the time: it is rank 0's on all ranks"
NAMES = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
CLOCKS = (*(f"time:{name}{unit}" for name in NAMES for unit in ("", "_ns")), "timeit:default_timer")
CONVERTERS = tuple(f"time:{of}" for of in ("localtime", "gmtime", "ctime", "asctime", "strftime"))


class Clocks(Outward):
    """The script's clocks: the n-th reading is rank 0's n-th; libraries read their own for free."""

    name: ClassVar[str] = "clocks"
    without: ClassVar[str] = "each rank reads its own clock, and may decide otherwise by it"
    rows: ClassVar[tuple[EffectRow, ...]] = (
        ask(("time:clock_gettime", "time:clock_gettime_ns", "os:times"), why=WHY),
    )

    @patch(*CLOCKS, why=WHY, hot=True)
    def read(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Make a clock that reads rank 0's for the script, and this rank's for all others."""
        effects, users, frame, name = self.effects, decides, sys._getframe, original.__name__

        @stands_for(original)
        def read() -> Any:
            if users(frame(1).f_code.co_filename) and effects.mode() is Mode.SYNCED:
                return effects.ask_rank0(name, original)
            return original()

        return read

    @patch(*CONVERTERS, why=WHY, hot=True)
    def convert(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that converts rank 0's present time, unless another time is given."""
        name = original.__name__
        format, broken_down = name == "strftime", name in ("strftime", "asctime")  # comes first

        @stands_for(original)
        def convert(*given: Any) -> Any:
            if given[format:] not in ((), (None,)) or not self._decides():
                return original(*given)
            present = self.effects.ask_rank0(name, _time)
            return original(*given[:format], _localtime(present) if broken_down else present)

        return convert

    @patch("datetime:datetime.now", "datetime:datetime.utcnow", why=WHY, hot=True)
    def date(self, original: Any) -> Any:
        """Make a `now` that reads rank 0's clock; `today` asks `time.time`, and needs no patch."""
        utc = original.__name__ == "utcnow"

        @stands_for(original)
        def now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
            present = self.effects.ask_rank0("now", _time) if self._decides() else _time()
            made = cls.fromtimestamp(present, UTC if utc else tz)
            return made.replace(tzinfo=None) if utc else made

        return classmethod(now)

    def _decides(self) -> bool:
        """Return whether the caller of the clock decides by it, on all ranks alike."""
        users = decides(sys._getframe(2).f_code.co_filename)
        return users and self.effects.mode() is Mode.SYNCED
