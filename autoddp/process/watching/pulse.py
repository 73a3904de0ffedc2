"""A probe for whether this process gets anywhere, by its processor time, disks and main thread."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from autoddp.report import is_users, places

BUSY = 0.01  # part of one processor's time, from which on a process is busy
WAKES = 2.0  # per second, from which on something arrives for a thread; a sleeping one has none
TICKS = os.sysconf("SC_CLK_TCK")
DEPTH = 32  # frames of a stack that are told


@dataclass(frozen=True)
class PulseReading:
    """The findings of one look at the process."""

    at: float
    seconds: float  # of processor time, including that of its children
    wakes: int  # of the thread that runs the script
    moved: int  # bytes from and to disks
    stack: tuple[tuple[int, int], ...]  # each frame's code and line


class ProgressProbe:
    """The probe that looks at this process from a thread beside the one that runs the script."""

    def __init__(self, ident: int, native: int) -> None:
        self.ident, self.native = ident, native
        self.since = time.monotonic()  # when the process was last seen to get anywhere
        self._last = self._look()

    def idle(self) -> float:
        """Return the seconds since this process was last seen to get anywhere."""
        now, last = self._look(), self._last
        seconds = max(now.at - last.at, 1e-9)
        busy = (now.seconds - last.seconds) / seconds >= BUSY or (
            now.wakes - last.wakes
        ) / seconds >= WAKES
        if busy or now.moved != last.moved or now.stack != last.stack:
            self.since = now.at
        self._last = now
        return now.at - self.since

    def _look(self) -> PulseReading:
        children = sum(_seconds(pid) for pid in _descendants(os.getpid()))
        own = time.process_time() - time.thread_time()  # without the time of this thread
        return PulseReading(
            time.monotonic(), own + children, _wakes(self.native), _moved(), self.places()
        )

    def places(self) -> tuple[tuple[int, int], ...]:
        """Return the code and line of each frame of the script's thread."""
        frame = sys._current_frames().get(self.ident)
        found = []
        while frame is not None:
            found.append((id(frame.f_code), frame.f_lineno))
            frame = frame.f_back
        return tuple(found)

    def line(self) -> str:
        """Return the user's line that runs now."""
        frame = sys._current_frames().get(self.ident)
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        return places.named(frame)

    def stack(self) -> list[str]:
        """Return the user's frames, the outermost first, and where the last waits in a library."""
        frame = sys._current_frames().get(self.ident)
        inner = "" if frame is None or is_users(frame.f_code.co_filename) else _named(frame)
        users: list[str] = []
        while frame is not None and len(users) < DEPTH:
            if is_users(frame.f_code.co_filename):
                users.append(_named(frame))
            frame = frame.f_back
        return users[::-1] + ([f"inside {inner}"] if inner else [])


def _named(frame: FrameType) -> str:
    code, line = frame.f_code, frame.f_lineno
    found = places.cell(code.co_filename)
    at = f"{found}, line {line}" if found else f"{code.co_filename}:{line}"
    return f"{at}, in {code.co_name}"


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and all that these have."""
    found: list[int] = []
    todo = [pid]
    while todo:
        for children in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                some = [int(child) for child in children.read_text().split()]
                found += some
                todo += some
    return found


def _seconds(pid: int) -> float:
    """Return the processor time of a process in seconds, 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def _wakes(native: int) -> int:
    """Return how often a thread of this process has waited for something and was woken."""
    return _field(f"/proc/self/task/{native}/status", "voluntary_ctxt_switches:")


def _moved() -> int:
    return _field("/proc/self/io", "read_bytes:") + _field("/proc/self/io", "write_bytes:")


def _field(path: str, name: str) -> int:
    """Read a number from a file of the kernel; return 0 where a container hides that file."""
    try:
        text = Path(path).read_text()
    except OSError:
        return 0
    return int(text.partition(name)[2].split(None, 1)[0]) if name in text else 0
