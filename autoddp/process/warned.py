"""Warnings name the line of the script that they are about, whatever autoddp's frames are between.

Python counts frames from the call of `warn` outwards to find that line, and shows what a line has
caused once only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

from autoddp.process.stacks import OURS, of_stack, outwards, visible


@cache  # TorchScript knows it by its id, which no other function may have
def warn_at_place(warn: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for `warnings.warn`."""

    def warn_there(
        message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **more: Any
    ) -> None:
        prefixes = more.pop("skip_file_prefixes", ()) if sys.version_info >= (3, 12) else ()
        frames = [frame for frame, _ in outwards(sys._getframe(1)) if not _skipped(frame)]
        levels = [(frame, level) for level, frame in enumerate(frames, 2)]  # 2: who calls this
        first, *others = visible(reversed(levels))[::-1] or levels
        named = [n for f, n in others if not f.f_code.co_filename.startswith(prefixes)]
        named = [first[1], *named, len(frames) + 2]  # the last is outside of all frames
        at = max(stacklevel, 2 if prefixes else 1)
        return warn(message, category, named[:at][-1], source, **more)

    return warn_there


def show_at_place(show: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return what stands in for the function by which warnings are shown, those of C code too."""

    def show_there(message: Any) -> None:
        if message.filename.startswith(OURS):
            for frame, line in of_stack(sys._getframe(1)):
                message.filename, message.lineno = frame.f_code.co_filename, line
                break
        show(message)

    return show_there


def _skipped(frame: FrameType) -> bool:
    """Return whether Python itself passes over a frame."""
    file = frame.f_code.co_filename
    return "importlib" in file and "_bootstrap" in file
