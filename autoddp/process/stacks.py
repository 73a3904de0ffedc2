"""Stacks and tracebacks as the script finds them in one process: without frames of autoddp.

Whatever prints them, `traceback` and `logging` first of all, calls functions of this file in place
of Python's.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
SCRIPT = os.path.join(OURS, "process", "script.py")  # runs the script
# files of torch that call what replaces a function of torch, or what is not to be compiled
CALLERS = ("torch/overrides.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py")
Entry = tuple[FrameType, Any]


def visible(entries: Iterable[Entry]) -> list[Entry]:
    """Return the frames that one process has, too; both lists begin with the outermost frame.

    Left out are autoddp's frames, the frames outside of the script's first one, and torch's frames
    that lead to autoddp's: a function of torch's that hands a sharded batch to autoddp is called
    once more below, and its outer frame is left out.
    """
    kept: list[Entry] = []
    ours = False
    for entry in entries:
        code = entry[0].f_code
        if code.co_filename == SCRIPT:
            kept = []
        if code.co_filename.startswith(OURS):
            while kept and kept[-1][0].f_code.co_filename.endswith(CALLERS):
                kept.pop()
            ours = True
            continue
        if ours and kept and kept[-1][0].f_code is code:
            kept.pop()
        kept.append(entry)
        ours = False
    return kept


def outwards(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    """Yield a frame and all outside of it, each with its line."""
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def of_stack(frame: FrameType | None) -> Iterator[Entry]:
    """Stand in for `traceback.walk_stack`: yield the visible frames, the innermost first."""
    if frame is None:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == traceback.__file__:
            frame = frame.f_back
    yield from reversed(visible(reversed(list(outwards(frame)))))


def of_traceback(walk: Callable[..., Iterable[Entry]]) -> Callable[..., Iterable[Entry]]:
    """Return what stands in for a function that yields the frames of a traceback."""

    def walk_visible(traceback: TracebackType | None) -> Iterator[Entry]:
        yield from visible(walk(traceback))

    return walk_visible
