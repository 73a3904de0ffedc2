"""Stacks and tracebacks as the script finds them in one process: without frames of autoddp's.

Whatever prints them, `traceback` and `logging` first of all, asks functions that stand here for
those of Python; loguru walks by itself, on frames and tracebacks that stand for the real ones.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
SCRIPT = os.path.join(OURS, "process", "script.py")  # runs the script: one process has none of it
HANDS_ON = os.path.join("torch", "overrides.py")  # calls what stands in for torch's functions
# what torch's compiler is told to leave alone, as that is, it calls from here
BETWEEN = (os.path.join("torch", "_compile.py"), os.path.join("torch", "_dynamo", "eval_frame.py"))
PASSED = (HANDS_ON, *BETWEEN)
Walk = Callable[..., Iterable[tuple[FrameType, Any]]]


def outward(frame: FrameType, skipped: Callable[[str], bool] | None = None) -> FrameType | None:
    """Return the next frame outwards that one process has, too, and that is not to be skipped.

    A function of torch's that handed a batch held by rows on to autoddp runs once more, below it.
    """
    outer, ours = frame.f_back, False
    while outer is not None:
        file = outer.f_code.co_filename
        if file == SCRIPT:
            return None
        if file.startswith(OURS):
            ours = True
        elif not (ours and (file.endswith(PASSED) or outer.f_code is frame.f_code)) and not (
            skipped and skipped(file)
        ):
            return outer
        outer = outer.f_back
    return None


def of_stack(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    """Stand in for `traceback.walk_stack`."""
    if frame is None:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == traceback.__file__:
            frame = frame.f_back
    while frame is not None:
        yield frame, frame.f_lineno
        frame = outward(frame)


def of_traceback(walk: Walk) -> Walk:
    """Return what stands in for a function that yields the frames of a traceback, and more."""

    def walk_there(traceback: TracebackType | None) -> Iterator[tuple[FrameType, Any]]:
        kept: list[tuple[FrameType, Any]] = []
        ours = handed = False
        for entry in walk(traceback):
            code = entry[0].f_code
            if code.co_filename.startswith(OURS):
                ours = True
                continue
            while ours and kept and kept[-1][0].f_code.co_filename.endswith(PASSED):
                handed |= kept.pop()[0].f_code.co_filename.endswith(HANDS_ON)
            if ours and handed and kept and kept[-1][0].f_code is code:
                kept.pop()
            kept.append(entry)
            ours, handed = False, handed and code.co_filename.endswith(BETWEEN)
        yield from kept

    return walk_there


def of_frames(outer: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return what stands in for `inspect.getouterframes`, which `inspect.stack` asks, too."""

    def getouterframes(frame: Any, context: int = 1) -> list[Any]:
        known, at = set(), frame
        while at is not None:
            known.add(id(at))
            at = outward(at)
        return [found for found in outer(frame, context) if id(found.frame) in known]

    return getouterframes


def of_inner(inner: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return what stands in for `inspect.getinnerframes`, whose entries begin with their frames."""

    def getinnerframes(tb: TracebackType | None, context: int = 1) -> list[Any]:
        return list(of_traceback(lambda entries: inner(entries, context))(tb))

    return getinnerframes


class OwnFrame:
    """A frame to whoever reads it, whose `f_back` is the next one outwards in one process."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, name)

    @property
    def f_back(self) -> OwnFrame | None:
        """Return the next frame outwards."""
        outer = outward(self._frame)
        return None if outer is None else OwnFrame(outer)


class OwnEntry:
    """An entry of a traceback to whoever reads it, and those below it that are not autoddp's."""

    def __init__(self, entries: list[tuple[FrameType, int]]) -> None:
        (frame, self.tb_lineno), *self._rest = entries
        self.tb_frame = OwnFrame(frame)

    @property
    def tb_next(self) -> OwnEntry | None:
        """Return the entry below."""
        return OwnEntry(self._rest) if self._rest else None


def _entries(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def by_itself(extract: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for loguru's method that takes the frames of a traceback."""

    def extract_there(self: Any, tb: TracebackType | None, *args: Any, **kwargs: Any) -> Any:
        entries = list(of_traceback(_entries)(tb))
        return extract(self, OwnEntry(entries) if entries else tb, *args, **kwargs)

    return extract_there
