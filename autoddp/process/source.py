"""The reader of the user's source: does it join a process group, or start its ranks itself?

Of the script and the files that it imports from its own folder, the reader follows what the first
line leads to: a name stands for every function, method or class of that name. Nothing is run.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from autoddp.process.script_file import specs
from autoddp.report import is_own

JOIN = "init_process_group"
STARTERS = ("spawn", "start_processes", "Process", "elastic_launch")
TARGETS = ("target", "fn")  # arguments of theirs
COUNTED = {"nprocs", "target"}  # arguments that psutil's Process and numpy's spawn do not take
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")  # of launchers
FLAGS = ("--local_rank", "--local-rank")
ALWAYS = (
    "is_available",
    "is_initialized",
)  # conditions that are the same for one process and several


@dataclass
class Scope:
    """The facts of one function, class or file; a bool says whether it is so under a condition."""

    names: list[tuple[str, bool]] = field(default_factory=list)  # of scopes that it leads to
    joins: list[tuple[str, bool]] = field(default_factory=list)  # lines: train.py:41
    # lines, and the names in the target of the process
    starts: list[tuple[str, set[str], bool]] = field(default_factory=list)
    asks: bool = False
    flag: str = ""


@dataclass(frozen=True)
class SourceFacts:
    """The facts on ranks in a script's source; a line is empty where there is none."""

    joins: str = ""  # line where a process of the script joins a process group
    starts: str = ""  # line where it starts processes that do
    always: bool = False  # whether it does so under no condition
    asks: bool = False  # whether it asks a launcher's variables for its rank
    flag: str = ""  # --local_rank or --local-rank, where its parser takes that


Scopes = dict[str, list[Scope]]


def read(path: str, folder: str) -> SourceFacts:
    """Read a script, and what it imports from `folder`, the first on its path."""
    scopes, roots = _scopes(path, folder)
    seen = _reached(scopes, [(root, False) for root in roots])
    inside = [(scope, maybe) for name, maybe in seen.items() for scope in scopes[name]]
    joins = [(line, maybe or some) for scope, maybe in inside for line, some in scope.joins]
    starts = [
        (line, maybe or some)
        for scope, maybe in inside
        for line, target, some in scope.starts
        if joins and (_joins(scopes, target) or not target & set(scopes))
    ]
    surest = [min(some, key=lambda one: one[1], default=("", True)) for some in (joins, starts)]
    return SourceFacts(
        joins=surest[0][0],
        starts=surest[1][0],
        always=not surest[bool(starts)][1],
        asks=any(scope.asks for scope, _ in inside),
        flag=next(filter(None, (scope.flag for scope, _ in inside)), ""),
    )


def files(path: str, folder: str) -> list[str]:
    """Return the files of a script: itself, and what it imports from `folder`."""
    return _scopes(path, folder)[1]


def joins(path: str, name: str) -> bool:
    """Return whether the function `name` of a file may join a process group, on any condition."""
    return _joins(_scopes(path, os.path.dirname(path))[0], {name, path})


@cache  # a launcher reads a script once, for all questions and for its ranks
def _scopes(path: str, folder: str) -> tuple[Scopes, list[str]]:
    """Return all scopes by name, a file's own by its path, and the paths of the files, in order."""
    scopes: Scopes = {}
    roots: list[str] = []
    pending = [path]
    while pending:
        file = pending.pop()
        if file in roots or (roots and not (file.endswith(".py") and is_own(file))):
            continue  # the script itself may have any name
        roots.append(file)
        scopes[file] = []
        try:
            tree = ast.parse(Path(file).read_bytes())
            _Reader(file, scopes).visit(tree)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # python itself reports the error; a file too deeply nested to parse may run
        pending += _imported(tree, file, folder)
    return scopes, roots


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


def _joins(scopes: Scopes, names: set[str]) -> bool:
    """Return whether any of these names leads to a process group."""
    seen = _reached(scopes, [(name, True) for name in names])
    return any(scope.joins for name in seen for scope in scopes[name])


def _reached(scopes: Scopes, roots: list[tuple[str, bool]]) -> dict[str, bool]:
    """Return the names that `roots` lead to, each with whether only a condition leads there."""
    seen: dict[str, bool] = {}
    pending = list(roots)
    while pending:
        name, maybe = pending.pop()
        if name not in scopes or (name in seen and seen[name] <= maybe):
            continue
        seen[name] = maybe
        pending += [(led, maybe or some) for scope in scopes[name] for led, some in scope.names]
    return seen


class _Reader(ast.NodeVisitor):
    """The visitor that sorts the code of a file into its scopes."""

    def __init__(self, file: str, scopes: Scopes) -> None:
        self.file, self.scopes = os.path.basename(file), scopes
        self.here, self.maybe = Scope(), False
        self.even: set[str] = set()  # names of values that are the same for one process and several
        scopes[file].append(self.here)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for outside in (*node.decorator_list, node.args):
            self.visit(outside)
        special = node.name.startswith("__")  # a method that its class, when it is called, may call
        if node.decorator_list:
            self.here.names.append((node.name, False))  # a decorator may call the function
        self._within(self.here if special else self._scope(node.name), node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._within(self._scope(node.name), [*node.bases, *node.body])

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note what is made of `is_initialized()` alone: `ours = not dist.is_initialized()`."""
        names = set(map(_name, node.targets))
        self.even = self.even - names if self._decides(node.value) else self.even | names
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Take code after an `if` that may return to be under its condition, like its branches."""
        self.visit(node.test)
        both = all(any(_name(n) == JOIN for n in _nodes(way)) for way in (node.body, node.orelse))
        depends = self._decides(node.test) and not both
        before, self.maybe = self.maybe, self.maybe or depends
        for statement in (*node.body, *node.orelse):
            self.visit(statement)
        leaves = any(isinstance(n, ast.Return) for n in _nodes([*node.body, *node.orelse]))
        self.maybe = (before or leaves) if depends else self.maybe

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Take what follows the first value as conditional: `"RANK" in os.environ and join()`."""
        first, *others = node.values
        self.visit(first)
        before, self.maybe = self.maybe, self.maybe or any(map(self._decides, node.values[:-1]))
        for value in others:
            self.visit(value)
        self.maybe = before

    def visit_Try(self, node: ast.Try) -> None:
        """Take all code from here on as conditional where a handler returns: `except KeyError`."""
        self.maybe |= any(isinstance(n, ast.Return) for n in _nodes(node.handlers))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called, named = _name(node.func), {keyword.arg for keyword in node.keywords}
        if called in STARTERS and (named & COUNTED or (called != "Process" and len(node.args) > 1)):
            target = [keyword.value for keyword in node.keywords if keyword.arg in TARGETS]
            names = set(map(_name, _nodes(target or node.args[:1])))
            self.here.starts.append((f"{self.file}:{node.lineno}", names, self.maybe))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._lead(node, node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._lead(node, node.attr)
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Take the mere name of a launcher's variable, or of an option, as a question for it."""
        self.here.asks |= node.value in VARIABLES
        self.here.flag = self.here.flag or (str(node.value) if node.value in FLAGS else "")

    def _decides(self, test: ast.expr) -> bool:
        """Return whether a condition, or a part of it, may depend on the number of processes."""
        if isinstance(test, ast.BoolOp):
            return any(map(self._decides, test.values))
        if isinstance(test, ast.UnaryOp):
            return self._decides(test.operand)
        if isinstance(test, ast.Compare):
            return _name(test.left) != "__name__"
        if isinstance(test, ast.Call):
            return _name(test.func) not in ALWAYS
        return _name(test) not in self.even

    def _lead(self, node: ast.Name | ast.Attribute, name: str) -> None:
        if name == JOIN:
            self.here.joins.append((f"{self.file}:{node.lineno}", self.maybe))
        elif isinstance(node.ctx, ast.Load):
            self.here.names.append((name, self.maybe))

    def _scope(self, name: str) -> Scope:
        self.scopes.setdefault(name, []).append(made := Scope())
        return made

    def _within(self, scope: Scope, body: Sequence[ast.AST]) -> None:
        before = self.here, self.maybe
        self.here, self.maybe = scope, False
        for node in body:
            self.visit(node)
        self.here, self.maybe = before


def _nodes(roots: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield these nodes and all inside, but for the bodies of functions that stand there."""
    for root in roots:
        yield root
        if not isinstance(root, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _nodes(list(ast.iter_child_nodes(root)))


def _name(node: ast.AST) -> str:
    """Return `spawn` for both `mp.spawn` and `spawn`, empty for other nodes."""
    return str(getattr(node, "attr", getattr(node, "id", "")))
