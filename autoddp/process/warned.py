"""The place that a warning names: frames of autoddp's between the script and torch do not count.

Python counts frames from the call of `warn` outwards to find the line that a warning is about, and
shows what that line has given once only. So the script's own line has to be found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

from autoddp.process.stacks import OURS, outward


@cache  # TorchScript knows it by its id, which no other function may have
def warn_at_place(warn: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for `warnings.warn`."""

    def warn_there(
        message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **more: Any
    ) -> None:
        frame: FrameType | None = sys._getframe(1)
        assert frame is not None
        if prefixes := more.get("skip_file_prefixes"):  # from Python 3.12 on
            own = not frame.f_code.co_filename.startswith(prefixes)  # then this frame counts
            more = {"skip_file_prefixes": (*prefixes, OURS)}
            return warn(message, category, max(stacklevel, 2) + own, source, **more)
        level = 2  # the frame that calls this function
        for _ in range(stacklevel - 1):
            outer = frame and outward(frame, _skipped)
            while frame is not None and frame is not outer:
                frame = frame.f_back
                level += frame is None or not _skipped(frame.f_code.co_filename)
        return warn(message, category, level, source)

    return warn_there


def show_at_place(show: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return what stands in for the function by which warnings are shown, those of C code too."""

    def show_there(message: Any) -> None:
        if message.filename.startswith(OURS):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename != message.filename:
                frame = frame.f_back
            outer = frame and outward(frame)
            if outer is not None:
                message.filename, message.lineno = outer.f_code.co_filename, outer.f_lineno
        show(message)

    return show_there


def _skipped(file: str) -> bool:
    """Return whether Python itself passes over frames of a file."""
    return "importlib" in file and "_bootstrap" in file
