"""The place that a warning names: frames of autoddp's between the script and torch do not count.

Python counts frames from the call of `warn` outwards to find the line that a warning is about, and
shows what that line has given once only. So the script's own line has to be found.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from autoddp.process.stacks import OURS, outward

BEYOND = ("sys", 1) if sys.version_info < (3, 13) else ("<sys>", 0)  # where no frame is left


@cache  # TorchScript knows it by its id, which no other function may have
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
        if prefixes := more.get("skip_file_prefixes"):  # from Python 3.12 on
            own = not frame.f_code.co_filename.startswith(prefixes)  # then this frame counts
            more = {"skip_file_prefixes": (*prefixes, OURS)}
            return warn(message, category, max(stacklevel, 2) + own, source, **more)
        for _ in range(stacklevel - 1):
            outer = outward(frame, _skipped)
            passed |= outer is not frame.f_back
            if outer is None:
                break
            frame = outer
        else:
            outer = frame
        if not passed:
            return warn(message, category, max(stacklevel, 1) + 1, source)
        kind = message.__class__ if isinstance(message, Warning) else category or UserWarning
        space = sys.__dict__ if outer is None else outer.f_globals
        name, line = BEYOND if outer is None else (outer.f_code.co_filename, outer.f_lineno)
        registry = space.setdefault("__warningregistry__", {})
        # without the file's globals, as `warn` itself: its source may have no loader
        where = (name, line, space.get("__name__", "<string>"), registry, None, source)
        return warnings.warn_explicit(message, kind, *where)

    return warn_there


def show_at_place(show: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return what stands in for the function by which warnings are shown, those of C code too."""

    def show_there(message: Any) -> None:
        if message.filename.startswith(OURS):
            frame = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename != message.filename:
                frame = frame.f_back  # type: ignore[assignment]
            outer = outward(frame) if frame is not None else None
            if outer is not None:
                message.filename, message.lineno = outer.f_code.co_filename, outer.f_lineno
        show(message)

    return show_there


def _skipped(file: str) -> bool:
    """Return whether Python itself passes over frames of a file."""
    return "importlib" in file and "_bootstrap" in file
