"""Clocks that the script reads show rank 0's time, so that budgets and time stamps agree."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Any, ClassVar

from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.ownership import decides
from autoddp.effects.rows import EffectRow, ask
from autoddp.patching import Call, patch, stands_for

WHY = "the script decides by the time: it is rank 0's on all ranks"
DEPRECATED = (
    "datetime.datetime.utcnow() is deprecated and scheduled for removal in a future version. Use "
    "timezone-aware objects to represent datetimes in UTC: datetime.datetime.now(datetime.UTC)."
)


class Clocks(Outward):
    """The script's clocks: the n-th reading is rank 0's n-th; libraries read their own for free."""

    name: ClassVar[str] = "clocks"
    without: ClassVar[str] = "each rank reads its own clock, and may decide otherwise by it"

    rows: ClassVar[tuple[EffectRow, ...]] = (
        ask("time:clock_gettime", "time:clock_gettime_ns", why=WHY),
        ask("os:times", why=WHY, pack=list, unpack=os.times_result),
    )

    @patch(
        "time:time",
        "time:time_ns",
        "time:monotonic",
        "time:monotonic_ns",
        "time:perf_counter",
        "time:perf_counter_ns",
        "time:process_time",
        "time:process_time_ns",
        "time:thread_time",
        "time:thread_time_ns",
        "timeit:default_timer",
        why=WHY,
        hot=True,
    )
    def read(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Make a clock that reads rank 0's for the script, and this rank's for all others."""
        effects, users, frame, name = self.effects, decides, sys._getframe, original.__name__

        @stands_for(original)
        def read() -> Any:
            if users(frame(1).f_code.co_filename) and effects.mode() is Mode.SYNCED:
                return effects.ask_rank0(name, original)
            return original()

        return read

    @patch("timeit:Timer.timeit", why=WHY)
    def measure(self, call: Call) -> Any:
        """Return the time that rank 0 took; all ranks run the statement."""
        took = call.plain()
        if self.effects.users() is not Mode.SYNCED:
            return took
        return self.effects.ask_rank0("timeit", lambda: took)

    @patch("time:localtime", "time:gmtime", "time:ctime", why=WHY, hot=True)
    def convert(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that converts rank 0's present time, unless another time is given."""

        @stands_for(original)
        def convert(seconds: float | None = None, /) -> Any:
            return original(self._present() if seconds is None else seconds)

        return convert

    @patch("time:asctime", why=WHY, hot=True)
    def spell(self, original: Callable[..., str]) -> Callable[..., str]:
        """Make an `asctime` that spells rank 0's present time, unless another time is given."""
        plain = time.localtime

        @stands_for(original)
        def asctime(*when: Any) -> str:
            return original(*(when or (plain(self._present()),)))

        return asctime

    @patch("time:strftime", why=WHY, hot=True)
    def format(self, original: Callable[..., str]) -> Callable[..., str]:
        """Make a `strftime` that formats rank 0's present time, unless another time is given."""
        plain = time.localtime

        @stands_for(original)
        def strftime(form: str, *when: Any) -> str:
            return original(form, *(when or (plain(self._present()),)))

        return strftime

    @patch("datetime:datetime.now", why=WHY, hot=True)
    def date(self, original: Any) -> Any:
        """Make a `now` that reads rank 0's clock; `today` asks `time.time`, and needs no patch."""
        slot = vars(datetime)["now"]

        @stands_for(original)
        def now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
            return self._moment(cls, lambda kind: slot.__get__(None, kind)(tz), tz)

        return classmethod(now)

    @patch("datetime:datetime.utcnow", why=WHY, hot=True)
    def utc_date(self, original: Any) -> Any:
        """Make a `utcnow` of rank 0's clock; Python's own would warn of a line in this file."""
        slot = vars(datetime)["now"]

        @stands_for(original)
        def utcnow(cls: type[datetime]) -> datetime:
            if sys.version_info >= (3, 12):
                warnings.warn(DEPRECATED, DeprecationWarning, stacklevel=2)
            return self._moment(
                cls, lambda kind: slot.__get__(None, kind)(UTC).replace(tzinfo=None), None
            )

        return classmethod(utcnow)

    def _present(self) -> float | None:
        """Return rank 0's time where the script asks, else None, for the function's own."""
        if decides(sys._getframe(2).f_code.co_filename) and self.effects.mode() is Mode.SYNCED:
            return self.effects.ask_rank0("time", time.time)
        return None

    def _moment(
        self, kind: type[datetime], read: Callable[[type[datetime]], datetime], zone: tzinfo | None
    ) -> datetime:
        if (
            not decides(sys._getframe(2).f_code.co_filename)
            or self.effects.mode() is not Mode.SYNCED
        ):
            return read(kind)
        answer = self.effects.ask_rank0("now", lambda: _fields(read(datetime)))
        year, month, day, hour, minute, second, micro, fold = answer
        return kind(year, month, day, hour, minute, second, micro, zone, fold=fold)


def _fields(at: datetime) -> list[int]:
    return [at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, at.fold]
