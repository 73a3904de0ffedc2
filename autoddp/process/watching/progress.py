"""A probe for whether this process gets anywhere: its processor time, devices and main thread."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from autoddp.comm import accelerator
from autoddp.report import is_users, places

BUSY = 0.01  # part of one processor's time, from which on a process is busy
WAKES = 2.0  # per second, from which on something arrives for a thread; a sleeping one has none
TICKS = os.sysconf("SC_CLK_TCK")
DEPTH = 32  # frames of a stack that are shown


class ProgressReading(NamedTuple):
    """The findings of one look at the process."""

    at: float
    seconds: float  # of processor time, including that of its children
    wakes: int  # of the thread that runs the script
    places: tuple[tuple[int, int], ...]  # each frame's code and line


class ProgressProbe:
    """The probe of this process and thread, the script's, which another thread asks."""

    def __init__(self) -> None:
        self.ident, self.native = threading.get_ident(), threading.get_native_id()
        self.since = time.monotonic()  # when the process was last seen to get anywhere
        self._last = self._look()
        self._stays = False  # whether Python is where it was at the look before
        self._marks: list[Any] = []  # behind what the devices were given
        self._marked = 0.0

    def idle(self) -> float:
        """Return the seconds since this process was last seen to get anywhere."""
        now, last = self._look(), self._last
        seconds = max(now.at - last.at, 1e-9)
        busy = (now.seconds - last.seconds) / seconds >= BUSY
        woken = (now.wakes - last.wakes) / seconds >= WAKES
        self._stays = now.places == last.places
        if busy or woken or not self._stays:
            self.since = now.at
        self._last = now
        return now.at - self.since

    def behind(self) -> float:
        """Return the seconds for which Python has stayed at one place, and no device's work ended.

        The processor is busy meanwhile, as drivers wait by polling. A device is only touched once
        Python has stayed: that would spoil a CUDA graph, but Python moves on while one is recorded.
        """
        if not self._stays:
            self._marks = []
            return 0.0
        if all(mark.query() for mark in self._marks):
            self._marked = time.monotonic()
            self._marks = [
                _mark(device) for device in accelerator.devices() if device.type != "mps"
            ]
        return 0.0 if all(mark.query() for mark in self._marks) else time.monotonic() - self._marked

    def line(self) -> str:
        """Return the user's line that runs now."""
        frames = self._frames()
        return places.named(next((f for f in frames if is_users(f.f_code.co_filename)), None))

    def stack(self) -> list[str]:
        """Return the user's frames, the outermost first, and where the last waits in a library."""
        frames = self._frames()
        users = [frame for frame in frames if is_users(frame.f_code.co_filename)]
        inner = [f"inside {_named(frames[0])}"] if frames[:1] != users[:1] else []
        return [*map(_named, reversed(users[:DEPTH])), *inner]

    def _wakes(self) -> int:
        """Return how often the script's thread has woken; 0 where a container hides that."""
        try:
            text = Path(f"/proc/self/task/{self.native}/status").read_text()
        except OSError:
            return 0
        found = text.partition("\nvoluntary_ctxt_switches:")[2].split(None, 1)
        return int(found[0]) if found else 0

    def _frames(self) -> list[FrameType]:
        """Return the frames of the script's thread, the innermost first."""
        innermost = sys._current_frames()[self.ident]
        return [frame for frame, _ in traceback.walk_stack(innermost)]

    def _look(self) -> ProgressReading:
        children = sum(_seconds(pid) for pid in _descendants(os.getpid()))
        own = time.process_time() - time.thread_time()  # without the time of this thread
        found = tuple((id(frame.f_code), frame.f_lineno) for frame in self._frames())
        return ProgressReading(time.monotonic(), own + children, self._wakes(), found)


def _mark(device: torch.device) -> torch.Event:
    """Record an event behind all work that the device was given on its default stream."""
    mark = torch.Event(device)
    mark.record()
    return mark


def _named(frame: FrameType) -> str:
    code, line = frame.f_code, frame.f_lineno
    found = places.cell(code.co_filename)
    at = f"{found}, line {line}" if found else f"{code.co_filename}:{line}"
    return f"{at}, in {code.co_name}"


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and all that these have."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for child in map(int, children.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _seconds(pid: int) -> float:
    """Return the processor time of a process in seconds, 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS
