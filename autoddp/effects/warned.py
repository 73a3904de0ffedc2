"""The place that a warning names: frames of autoddp's between the script and torch do not count.

Python counts frames from the call of `warn` outwards to find the line that a warning is about, and
shows what that line has given once only. So the script's own line has to be found.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
SCRIPT = os.path.join(OURS, "process", "script.py")  # runs the script: one process has none of it
HANDS_ON = torch.overrides.__file__  # calls what stands in for torch's functions
BEYOND = ("sys", 1) if sys.version_info < (3, 13) else ("<sys>", 0)  # where no frame is left


def warn_at_place(warn: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for `warnings.warn`."""

    def warn_there(
        message: Any,
        category: Any = None,
        stacklevel: int = 1,
        source: Any = None,
        **more: Any,
    ) -> None:
        frame, passed = sys._getframe(1), False
        level = max(stacklevel, 2 if more.get("skip_file_prefixes") else 1)
        for _ in range(level - 1):
            outer = _outward(frame, more.get("skip_file_prefixes", ()))
            passed |= outer is not frame.f_back
            if outer is None:
                break
            frame = outer
        else:
            outer = frame
        if not passed:
            return warn(message, category, stacklevel + 1, source, **more)
        kind = message.__class__ if isinstance(message, Warning) else category or UserWarning
        space = sys.__dict__ if outer is None else outer.f_globals
        name, line = BEYOND if outer is None else (outer.f_code.co_filename, outer.f_lineno)
        registry = space.setdefault("__warningregistry__", {})
        where = (name, line, space.get("__name__", "<string>"), registry, space, source)
        return warnings.warn_explicit(message, kind, *where)

    return warn_there


def show_at_place(show: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return what stands in for the function by which warnings are shown, those of C code too."""

    def show_there(message: Any) -> None:
        if message.filename.startswith(OURS):
            frame = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename != message.filename:
                frame = frame.f_back  # type: ignore[assignment]
            outer = _outward(frame) if frame is not None else None
            if outer is not None:
                message.filename, message.lineno = outer.f_code.co_filename, outer.f_lineno
        show(message)

    return show_there


def _outward(frame: FrameType, skipped: tuple[str, ...] = ()) -> FrameType | None:
    """Return the next frame outwards that one process has, too.

    A function of torch's that handed a batch held by rows on to autoddp runs once more, below it.
    """
    outer, ours = frame.f_back, False
    while outer is not None:
        file = outer.f_code.co_filename
        if file == SCRIPT:
            return None
        if file.startswith(OURS):
            ours = True
        elif not (ours and (file == HANDS_ON or outer.f_code is frame.f_code)) and not (
            file.startswith(skipped) or ("importlib" in file and "_bootstrap" in file)
        ):
            return outer
        outer = outer.f_back
    return None
