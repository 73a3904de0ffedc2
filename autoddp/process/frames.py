"""The feature that keeps frames of autoddp's out of tracebacks and warnings of the script."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from autoddp.patching import Feature, patch, stands_for

if TYPE_CHECKING:
    from autoddp.options import Options

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
SCRIPT = os.path.join(OURS, "process", "script.py")  # runs the script
# files of torch that call what replaces a function of torch, or what is not to be compiled
CALLERS = ("torch/overrides.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py")
Entry = tuple[FrameType, Any]
Function = Callable[..., Any]


class Frames(Feature):
    """Tracebacks of errors that the script catches, and warnings, as in one process."""

    name: ClassVar[str] = "frames"
    without: ClassVar[str] = (
        "tracebacks of errors that are caught, and warnings, show frames of autoddp's"
    )

    @classmethod
    def wanted(cls, options: Options) -> bool:
        """Return whether the user has not asked for whole tracebacks."""
        return not options.verbose

    def setup(self, undo: ExitStack) -> None:
        """Have all warnings of autoddp's lines go to `show`, which filters them by another line."""
        undo.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("always", module=r"autoddp\.")

    @patch(
        *("traceback:walk_tb", "traceback:_walk_tb_with_full_positions"),
        why="tracebacks show the script's frames, and none of ours",
        hot=True,
        optional=True,
    )
    def walk_traceback(self, original: Function) -> Function:
        """Make a walk down a traceback that passes over frames of autoddp's."""
        return stands_for(original)(lambda traceback: iter(visible(original(traceback))))

    @patch(
        "warnings:_showwarnmsg",
        why="a warning names the line that it names in one process, not ours",
        hot=True,
        optional=True,
    )
    def show(self, original: Function) -> Function:
        """Make what shows a warning of autoddp's line warn of the line that led there."""
        own: dict[str, Any] = {"__name__": "autoddp"}

        def show_there(message: Any) -> None:
            if not message.filename.startswith(OURS):
                original(message)
                return
            file, line, names = "autoddp", message.lineno, own  # outside of the script
            frame = _place(message)
            if frame is not None:
                file, line, names = frame.f_code.co_filename, frame.f_lineno, frame.f_globals
            shown = names.setdefault("__warningregistry__", {})
            warnings.warn_explicit(message.message, None, file, line, names.get("__name__"), shown)

        return stands_for(original)(show_there)


def _place(message: Any) -> FrameType | None:
    """Return the frame that a warning of autoddp's line names in one process.

    It is as many visible frames outside of the call of `warn`, the second frame from here.
    """
    stack = [frame for frame, _ in traceback.walk_stack(sys._getframe(2))]
    warned = message.filename, message.lineno
    places = [(frame.f_code.co_filename, frame.f_lineno) for frame in stack]
    level = places.index(warned) if warned in places else len(places)
    kept = [frame for frame, _ in visible((frame, None) for frame in reversed(stack))]
    return kept[-1 - level] if level < len(kept) else None


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
