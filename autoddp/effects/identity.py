"""A warning, with the script's line, of `type(x) is torch.Tensor`, which is false for a batch."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from autoddp.patching import Call, Feature, patch
from autoddp.report import file_of, users_modules

if TYPE_CHECKING:
    from autoddp.effects.run import Run

TRIES = 5  # of a parse that Python itself gets wrong
SAID = (
    "`is` tells a batch, and what is computed of it, from a torch.Tensor, though it is one; "
    "write isinstance(x, torch.Tensor) or type(x) == torch.Tensor, or run with --view local"
)


class Identity(Feature):
    """A warning, in time, of a question that no tensor of autoddp's can answer rightly."""

    name = "identity"
    without = "nothing is said where the script asks for a tensor's type by `is`"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.run = run
        self.read: set[str] = set()
        self.loaded = 0

    def setup(self, undo: ExitStack) -> None:
        """Look through the source when an optimizer steps, too: a script may have no loader."""
        undo.callback(register_optimizer_step_pre_hook(lambda *_: self.look()).remove)

    @patch(
        "torch.utils.data:DataLoader.__iter__",
        why="what misleads a script is said before its first batch",
    )
    def look_first(self, call: Call) -> Any:
        """Look through the source before the loader gives its first batch."""
        self.look()
        return call.plain()

    def look(self) -> None:
        """Look through the script's files that were loaded since the last look."""
        if len(sys.modules) == self.loaded or not self.run.view.context.is_rank():
            return
        self.loaded = len(sys.modules)  # reading them at each step took most of a small step
        for module in users_modules():
            file = file_of(module)
            if file and file not in self.read:
                self.read.add(file)
                for line in identity_checks("".join(linecache.getlines(file))):
                    self.run.report.say_once("identity", f"{file.rpartition('/')[2]}:{line}", SAID)


@functools.cache
def identity_checks(source: str) -> tuple[int, ...]:
    """Return the lines on which a value's type is compared with torch's Tensor by `is`."""
    if not all(word in source for word in ("Tensor", " is ", "type(")):
        return ()
    for _ in range(TRIES):
        try:
            return tuple(_identity_checks(ast.parse(source)))
        except SyntaxError:
            return ()  # a notebook's cell with magics; Python itself will tell
        except SystemError:
            continue  # Python 3.11 counts the depth of all trees in one place, at times wrongly
    return ()


def _identity_checks(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(
            isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops
        ):
            sides = [node.left, *node.comparators]
            if any(map(_is_type_of, sides)) and any(map(_is_tensor, sides)):
                yield node.lineno


def _is_type_of(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "type"
        and len(node.args) == 1
    )


def _is_tensor(node: ast.expr) -> bool:
    return "Tensor" in (getattr(node, "attr", ""), getattr(node, "id", ""))
