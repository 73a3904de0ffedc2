"""Whether this process gets anywhere: what its processors, its disks and its main thread do."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from autoddp.report import is_users

BUSY = 0.01  # of one processor's time
WAKES = 2.0  # in a second: a thread that something arrives for; one that sleeps has none
TICKS = os.sysconf("SC_CLK_TCK")
DEPTH = 32  # frames of a stack that are told


@dataclass(frozen=True)
class PulseReading:
    """What one look at the process has found."""

    at: float
    seconds: float  # of processor time, that of its children among them
    wakes: int  # of the thread that runs the script
    moved: int  # bytes from and to disks
    stack: tuple[tuple[int, int], ...]  # each frame's code and line


class ProgressProbe:
    """Looks at this process from another thread than the one that runs the script."""

    def __init__(self, ident: int, native: int) -> None:
        self.ident, self.native = ident, native
        self.since = time.monotonic()  # when it was last seen to get anywhere
        self._last = self._look()

    def idle(self) -> float:
        """Seconds since it was last seen to get anywhere."""
        now, last = self._look(), self._last
        seconds = max(now.at - last.at, 1e-9)
        busy = (now.seconds - last.seconds) / seconds >= BUSY or (now.wakes - last.wakes) / seconds >= WAKES
        if busy or now.moved != last.moved or now.stack != last.stack:
            self.since = now.at
        self._last = now
        return now.at - self.since

    def _look(self) -> PulseReading:
        children = sum(_seconds(pid) for pid in _descendants(os.getpid()))
        own = time.process_time() - time.thread_time()  # without what looking takes
        return PulseReading(time.monotonic(), own + children, _wakes(self.native), _moved(), self.places())

    def places(self) -> tuple[tuple[int, int], ...]:
        """Where the script's thread is: the code and line of each frame."""
        frame = sys._current_frames().get(self.ident)
        found = []
        while frame is not None:
            found.append((id(frame.f_code), frame.f_lineno))
            frame = frame.f_back
        return tuple(found)

    def line(self) -> str:
        """The user's line that runs now."""
        frame = sys._current_frames().get(self.ident)
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        return "?" if frame is None else f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"

    def stack(self) -> list[str]:
        """The user's frames, the outermost first, and where the innermost of them waits inside a library."""
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
    return f"{code.co_filename}:{line}, in {code.co_name}"


def _descendants(pid: int) -> list[int]:
    """The processes that this one has started, and theirs."""
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
    """Processor time of a process; none once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def _wakes(native: int) -> int:
    """How often a thread of this process has waited for something and was woken."""
    return _field(f"/proc/self/task/{native}/status", "voluntary_ctxt_switches:")


def _moved() -> int:
    return _field("/proc/self/io", "read_bytes:") + _field("/proc/self/io", "write_bytes:")


def _field(path: str, name: str) -> int:
    """A number of a file of the kernel's; where a container hides that file, 0."""
    try:
        text = Path(path).read_text()
    except OSError:
        return 0
    return int(text.partition(name)[2].split(None, 1)[0]) if name in text else 0
