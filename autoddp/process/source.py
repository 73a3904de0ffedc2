"""The reader of the user's source: the names that it leads to, and under which conditions.

Of the script and the files that it imports from its own folder, the reader follows what the first
line leads to: a name stands for every function, method or class of that name. Nothing is run.
"""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from autoddp.process.script import specs
from autoddp.report import is_own

JOIN = "init_process_group"
STARTERS = ("spawn", "start_processes", "Process", "elastic_launch")
TARGETS = ("target", "fn")  # arguments of theirs
COUNTED = {"nprocs", "target"}  # arguments that psutil's Process and numpy's spawn do not take
FLAGS = ("--local_rank", "--local-rank")
# names of what is the same for one process and several
EVEN = frozenset(("__name__", "is_available", "is_initialized"))


class Found(NamedTuple):
    """A name in the code, or an option in `FLAGS`, or a call that starts processes."""

    maybe: bool  # whether it is reached under a condition only
    name: str
    line: str  # train.py:41
    target: frozenset[str] | None = None  # the names in the target of the processes


Scopes = dict[str, list[Found]]  # what stands in functions and classes of a name, and in a file


def files(path: str, folder: str) -> dict[str, bytes]:
    """Return the files of a script, itself and what it imports from `folder`, with their text."""
    return _scopes(path, folder)[1]


def found(path: str, folder: str) -> list[Found]:
    """Return what a script leads to, and what it imports from `folder`, the first on its path."""
    scopes, texts = _scopes(path, folder)
    return _reached(scopes, [(file, False) for file in texts])


def joins(target: frozenset[str], path: str, folder: str) -> bool:
    """Return whether names may lead to a process group, as those do that the script has not."""
    scopes, _ = _scopes(path, folder)
    led = _reached(scopes, [(name, True) for name in target])
    return any(each.name == JOIN for each in led) or not target & scopes.keys()


@cache  # a launcher reads a script once, for all questions and for its ranks
def _scopes(path: str, folder: str) -> tuple[Scopes, dict[str, bytes]]:
    """Return all scopes by name, a file's own by its path, and the files in order, with their text.

    A file that cannot be read has no text: python itself reports the error.
    """
    scopes: Scopes = defaultdict(list)
    texts: dict[str, bytes] = {}
    pending = [path]
    while pending:
        file = pending.pop()
        if file in texts or (texts and not (file.endswith(".py") and is_own(file))):
            continue  # the script itself may have any name
        texts[file] = b""
        # one that is too deeply nested to parse may run
        with suppress(OSError, SyntaxError, ValueError, RecursionError):
            texts[file] = Path(file).read_bytes()
            tree = ast.parse(texts[file])
            _Reader(file, scopes).visit(tree)
            pending += _imported(tree, file, folder)
    return scopes, texts


def _imported(tree: ast.AST, file: str, folder: str) -> Iterator[str]:
    """Yield the files that a file imports from `folder`, or from its own by a relative import."""
    for node in ast.walk(tree):
        names, base = [], folder
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"{module}.{alias.name}".strip(".") for alias in node.names] + [module]
            base = os.sep.join(file.split(os.sep)[: -node.level]) if node.level else folder
        for name in filter(None, names):
            yield from filter(None, (spec.origin for spec in specs(name, [base])))


def _reached(scopes: Scopes, roots: list[tuple[str, bool]]) -> list[Found]:
    """Return what the names in `roots` lead to, each with whether only a condition leads there."""
    seen: dict[str, bool] = {}
    pending = list(roots)
    while pending:
        name, maybe = pending.pop()
        if name in scopes and seen.get(name, 2) > maybe:
            seen[name] = maybe
            pending += [(each.name, maybe or each.maybe) for each in scopes[name]]
    return [
        each._replace(maybe=maybe or each.maybe)
        for name, maybe in seen.items()
        for each in scopes[name]
    ]


class _Reader(ast.NodeVisitor):
    """The visitor that sorts the code of a file into its scopes."""

    def __init__(self, file: str, scopes: Scopes) -> None:
        self.file, self.scopes = os.path.basename(file), scopes
        self.here, self.maybe = scopes[file], False
        self.even = EVEN

    def visit(self, node: ast.AST) -> None:
        """Note what is used, not set, and visit what is in it.

        What is inside of a condition is under it, and what comes after one that may return.
        """
        name, target = _name(node), _target(node)
        if (name or target is not None) and not isinstance(getattr(node, "ctx", None), ast.Store):
            line = f"{self.file}:{getattr(node, 'lineno', 0)}"
            self.here.append(Found(self.maybe, name, line, target))
        before, self.maybe = self.maybe, self.maybe or self._depends(node)
        super().visit(node)
        self.maybe = before or (self.maybe and _returns(node))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for outside in (*node.decorator_list, node.args):
            self.visit(outside)
        special = node.name.startswith("__")  # a method that its class, when it is called, may call
        if node.decorator_list:
            self.here.append(Found(False, node.name, ""))  # a decorator may call it
        self._within(self.here if special else self.scopes[node.name], node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._within(self.scopes[node.name], [*node.bases, *node.body])

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note what is made of `is_initialized()` alone: `ours = not dist.is_initialized()`."""
        names = set(map(_name, node.targets))
        self.even = self.even - names if self._decides(node.value) else self.even | names
        self.generic_visit(node)

    def _depends(self, node: ast.AST) -> bool:
        """Return whether what is inside of a node may depend on the number of processes."""
        if isinstance(node, ast.If):
            ways = [[n for line in way for n in ast.walk(line)] for way in (node.body, node.orelse)]
            both = all(any(_name(n) == JOIN for n in way) for way in ways)
            return self._decides(node.test) and not both
        if isinstance(node, ast.BoolOp):  # "RANK" in os.environ and join()
            return any(map(self._decides, node.values[:-1]))
        return isinstance(node, ast.Try) and any(map(_returns, node.handlers))  # except KeyError

    def _decides(self, test: ast.expr) -> bool:
        """Return whether a condition, or a part of it, may depend on the number of processes."""
        if isinstance(test, ast.BoolOp):
            return any(map(self._decides, test.values))
        if isinstance(test, ast.UnaryOp):
            return self._decides(test.operand)
        # what is compared, or called
        return _name(getattr(test, "left", getattr(test, "func", test))) not in self.even

    def _within(self, scope: list[Found], body: Sequence[ast.AST]) -> None:
        before = self.here, self.maybe
        self.here, self.maybe = scope, False
        for node in body:
            self.visit(node)
        self.here, self.maybe = before


def _returns(node: ast.AST) -> bool:
    """Return whether a part of a function may return, apart from functions in it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    return isinstance(node, ast.Return) or any(map(_returns, ast.iter_child_nodes(node)))


def _target(node: ast.AST) -> frozenset[str] | None:
    """Return the names in the target of the processes that a call starts; None if it is none."""
    if not isinstance(node, ast.Call) or _name(node.func) not in STARTERS:
        return None
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    if not (COUNTED & named.keys() or (_name(node.func) != "Process" and len(node.args) > 1)):
        return None
    given = [named[name] for name in TARGETS if name in named] or node.args[:1]
    return frozenset(_name(inner) for each in given for inner in ast.walk(each))


def _name(node: ast.AST) -> str:
    """Return `spawn` for both `mp.spawn` and `spawn`, and an option in `FLAGS`; else nothing."""
    if isinstance(node, ast.Constant):
        return str(node.value) if node.value in FLAGS else ""
    return str(getattr(node, "attr", getattr(node, "id", "")))
