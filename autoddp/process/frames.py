"""The feature that keeps frames of autoddp's out of what a script or a library says of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from autoddp.patching import Feature, patch, stands_for
from autoddp.process import stacks, warned

if TYPE_CHECKING:
    from autoddp.options import Options

STACK = "stacks and tracebacks show the script's frames, and none of ours"
WARNED = "a warning names the line that it is about, not ours"
Function = Callable[..., Any]


class Frames(Feature):
    """Stacks, tracebacks and warnings as in one process, whose script has no frame below it."""

    name: ClassVar[str] = "frames"
    without: ClassVar[str] = (
        "stacks, tracebacks of errors that are caught, and warnings show frames of autoddp's"
    )

    @classmethod
    def wanted(cls, options: Options) -> bool:
        """Return whether the user has not asked for whole tracebacks."""
        return not options.verbose

    @patch("traceback:walk_stack", why=STACK, hot=True)
    def walk_stack(self, original: Function) -> Function:
        """Make a walk up the stack that ends with the script's own frames."""
        return stands_for(original)(stacks.of_stack)

    @patch(
        *("traceback:walk_tb", "traceback:_walk_tb_with_full_positions"),
        why=STACK,
        hot=True,
        optional=True,
    )
    def walk_traceback(self, original: Function) -> Function:
        """Make a walk down a traceback that passes over frames of autoddp's."""
        return stands_for(original)(stacks.of_traceback(original))

    @patch("warnings:warn", why=WARNED, hot=True)
    def warn(self, original: Function) -> Function:
        """Make a `warn` that does not count frames of autoddp's; TorchScript knows it for that."""
        made = stands_for(original)(warned.warn_at_place(original))
        if "torch" in sys.modules:
            from autoddp import torch_internals

            torch_internals.as_builtin(made, "aten::warn")
        return made

    @patch("warnings:_showwarnmsg", why=WARNED, hot=True, optional=True)
    def show(self, original: Function) -> Function:
        """Make what shows a warning of C code name the script's line in place of autoddp's."""
        return stands_for(original)(warned.show_at_place(original))
