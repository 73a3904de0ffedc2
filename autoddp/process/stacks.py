"""Stacks and tracebacks as the script finds them in one process: without frames of autoddp's.

Whatever prints them, `traceback` and `logging` first of all, asks functions that stand here for
those of Python.
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
