"""Tracebacks and warnings of the script, without the frames of autoddp between it and torch.

A torch function that is given a sharded tensor hands the call on through `torch/overrides.py`, and
runs once more below autoddp's frames; one process has the inner frame alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from autoddp.patching import Feature, patch, stands_for

if TYPE_CHECKING:
    from autoddp.options import Options

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
SCRIPT = os.path.join(OURS, "process", "script.py")  # runs the script: one process has none of it
HANDS_ON = os.path.join("torch", "overrides.py")
# torch's compiler calls from here what it does not compile
BETWEEN = (os.path.join("torch", "_compile.py"), os.path.join("torch", "_dynamo", "eval_frame.py"))
REGISTRY = "__warningregistry__"  # of a module
Function = Callable[..., Any]


class Frames(Feature):
    """Tracebacks that the script prints, and the lines that warnings name, as in one process."""

    name: ClassVar[str] = "frames"
    without: ClassVar[str] = "tracebacks of errors that are caught, and warnings, show our frames"

    @classmethod
    def wanted(cls, options: Options) -> bool:
        """Return whether the user has not asked for whole tracebacks."""
        return not options.verbose

    @patch(
        "traceback:TracebackException.__init__",
        why="a traceback that the script prints or logs has no frames of autoddp",
        hot=True,
    )
    def shorten(self, original: Function) -> Function:
        """Make the constructor, which all of `traceback` and `logging` use, strip the error."""

        def __init__(shown: Any, kind: Any, error: Any, *given: Any, **named: Any) -> None:
            if error is not None:
                strip(error)
            original(shown, kind, error, *given, **named)

        return stands_for(original)(__init__)

    @patch(
        "warnings:_showwarnmsg",
        why="a warning names the script's line, not ours",
        hot=True,
        optional=True,
    )
    def show(self, original: Function) -> Function:
        """Make the function that shows warnings, those of C code too, correct their place."""

        def show_there(message: Any) -> None:
            if not message.filename.startswith(OURS) or _moved(message, sys._getframe(1)):
                original(message)

        return stands_for(original)(show_there)


def _moved(message: Any, frame: FrameType) -> bool:
    """Move a warning to the script's line; return whether that line has not given it before.

    Python notes in the registry of a module which warnings a line has given: that note is moved,
    too, since one line of autoddp's stands for many of the script's.
    """
    caller, at = _caller(frame), message.lineno
    if caller is None:
        message.filename, message.lineno = "sys", 1  # python's words for a place outside the script
        return True
    said = str(message.message), message.category
    ours: FrameType | None = frame
    while ours is not None and ours.f_code.co_filename != message.filename:
        ours = ours.f_back
    registry = ours.f_globals.get(REGISTRY, {}) if ours is not None else {}
    noted = registry.pop((*said, at), False)
    message.filename, message.lineno = caller.f_code.co_filename, caller.f_lineno
    theirs = caller.f_globals.setdefault(REGISTRY, {})
    if noted and (*said, message.lineno) in theirs:
        return False
    if noted:
        theirs.setdefault("version", registry["version"])  # of the filters; Python clears others
        theirs[*said, message.lineno] = True
    return True


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that called autoddp; None where that is what runs the script."""
    inner: CodeType | None = None
    while frame is not None and not frame.f_code.co_filename.startswith(OURS):
        inner, frame = frame.f_code, frame.f_back
    while frame is not None and (
        frame.f_code is inner or frame.f_code.co_filename.startswith(OURS) or _passes(frame.f_code)
    ):
        if frame.f_code.co_filename == SCRIPT:
            return None
        frame = frame.f_back
    return frame


def strip(error: BaseException) -> None:
    """Remove autoddp's frames from the tracebacks of an exception, its causes and contexts."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _without_ours(current.__traceback__)
        pending += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            pending += current.exceptions


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    ours = handed = False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename.startswith(OURS):
            ours = True
        else:
            while ours and kept and _passes(last := kept[-1].tb_frame.f_code):
                handed |= last.co_filename.endswith(HANDS_ON)
                kept.pop()
            if ours and handed and kept and kept[-1].tb_frame.f_code is code:
                kept.pop()
            kept.append(traceback)
            ours, handed = False, handed and code.co_filename.endswith(BETWEEN)
        traceback = traceback.tb_next
    for entry, following in zip(kept, [*kept, None][1:], strict=True):
        entry.tb_next = following
    return kept[0] if kept else None


def _passes(code: CodeType) -> bool:
    return code.co_filename.endswith((HANDS_ON, *BETWEEN))
