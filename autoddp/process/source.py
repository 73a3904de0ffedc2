"""A reader of the user's source: does it join a process group, and does it start its ranks itself?

Of the script and the files that it imports from its own folder, it sees what the first line leads
to: a name stands for every function, method or class so called. Nothing is run to find out.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from autoddp.report import is_own

JOIN = "init_process_group"
STARTERS = ("spawn", "start_processes", "Process", "elastic_launch")
TOLD = {"nprocs", "target"}  # arguments that psutil's Process and numpy's spawn do not take
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "is_torchelastic_launched")  # of launchers
FLAGS = ("--local_rank", "--local-rank")
ALWAYS = ("is_available", "is_initialized")  # conditions that do not tell one process from several

Names = frozenset[str]


@dataclass
class Scope:
    """The facts of one function, class or file; a bool says whether it is so under a condition."""

    names: list[tuple[str, bool]] = field(default_factory=list)  # of scopes that it leads to
    joins: list[tuple[str, bool]] = field(default_factory=list)  # lines: train.py:41
    # lines, the names in the target of the process, those in what the process is given
    starts: list[tuple[str, Names, Names, bool]] = field(default_factory=list)
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


def read(path: str, folder: str, text: str | None = None) -> SourceFacts:
    """Read a script, or its text, and what it imports from `folder`, the first on its path."""
    scopes, roots = _scopes(path, folder, text)
    return _found(scopes, [(root, False) for root in roots])


def files(path: str, folder: str, text: str | None = None) -> list[str]:
    """Return the files of a script: itself, and what it imports from `folder`."""
    return _scopes(path, folder, text)[1]


def joins(path: str, name: str) -> bool:
    """Return whether the function `name` of a file may join a process group, on any condition."""
    scopes, roots = _scopes(path, os.path.dirname(path), None)
    return bool(_found(scopes, [(name, True), (roots[0], True)]).joins)


@cache  # a launcher reads a script once, for all questions and for its ranks
def _scopes(path: str, folder: str, text: str | None) -> tuple[dict[str, list[Scope]], list[str]]:
    """Return all scopes by name, a file's own by its path, and the paths of the files, in order."""
    scopes: dict[str, list[Scope]] = {}
    roots: list[str] = []
    pending = [path]
    while pending:
        file = pending.pop()
        if file in roots or (roots and not (file.endswith(".py") and is_own(file))):
            continue  # the script itself may have any name
        roots.append(file)
        try:
            tree = ast.parse(text if file == path and text else Path(file).read_bytes())
            _Reader(file, scopes).visit(tree)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # python itself tells of the error; a file too deeply nested to parse may run
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
            yield from _find(name.split("."), base)


def _find(parts: list[str], folder: str) -> Iterator[str]:
    """Yield the files of a dotted name, with its packages' `__init__`, as far as they are there."""
    places = [folder]
    for part in parts:
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            return
        if spec.origin is not None:
            yield spec.origin
        places = list(spec.submodule_search_locations or ())


def _found(scopes: dict[str, list[Scope]], roots: list[tuple[str, bool]]) -> SourceFacts:
    seen = _reached(scopes, roots)
    inside = [(scope, maybe) for name, maybe in seen.items() for scope in scopes.get(name, ())]
    joins = [(line, maybe or some) for scope, maybe in inside for line, some in scope.joins]
    starts = [
        (line, maybe or some)
        for scope, maybe in inside
        for line, target, given, some in scope.starts
        if (joins and not target & set(scopes))
        or any(
            scope.joins
            for name in _reached(scopes, [(n, True) for n in given])
            for scope in scopes[name]
        )
    ]
    surest = [min(some, key=lambda one: one[1], default=("", True)) for some in (joins, starts)]
    return SourceFacts(
        joins=surest[0][0],
        starts=surest[1][0],
        always=not surest[bool(starts)][1],
        asks=any(scope.asks for scope, _ in inside),
        flag=next(filter(None, (scope.flag for scope, _ in inside)), ""),
    )


def _reached(scopes: dict[str, list[Scope]], roots: list[tuple[str, bool]]) -> dict[str, bool]:
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

    def __init__(self, file: str, scopes: dict[str, list[Scope]]) -> None:
        self.file, self.scopes = os.path.basename(file), scopes
        self.here = Scope()
        scopes.setdefault(file, []).append(self.here)
        self.known = {JOIN}  # names by which the file calls that function
        self.maybe, self.owner = False, ""
        self.even: set[str] = set()  # names of values that do not tell one process from several

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        special = self.owner and node.name.startswith("__")
        self._under(False, [*node.decorator_list, node.args], [])
        name = f"{self.owner}.{node.name}" if special else node.name
        if special or node.decorator_list:
            self.here.names.append((name, False))  # a decorator may call the function
        self._within(name, node.body, "")

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._within(node.name, [*map(ast.Expr, node.bases), *node.body], node.name)

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        """Note what is made of `is_initialized()` alone: `ours = not dist.is_initialized()`."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is not None:
            decides = self._decides(node.value)
            for name in filter(None, map(_name, targets)):
                self.even = self.even - {name} if decides else self.even | {name}
        self.generic_visit(node)

    visit_AnnAssign = visit_Assign

    def visit_If(self, node: ast.If) -> None:
        """Take code after an `if` that may return to be under its condition, like its branches."""
        ways = (ast.walk(ast.Module(way, [])) for way in (node.body, node.orelse))
        both = all(any(_name(inner) in self.known for inner in way) for way in ways)
        depends = self._decides(node.test) and not both
        self._under(depends, [node.test], [*node.body, *node.orelse])
        self.maybe |= depends and _leaves(node)

    def visit_Try(self, node: ast.Try) -> None:
        """Take all code as conditional where a handler returns: `except KeyError: return`."""
        self.maybe |= any(map(_leaves, node.handlers))
        self._under(True, [*node.body, *node.orelse, *node.finalbody], node.handlers)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._under(self._decides(node.test), [node.test], [node.body, node.orelse])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._under(any(map(self._decides, node.values[:-1])), node.values[:1], node.values[1:])

    def visit_match_case(self, node: ast.match_case) -> None:
        self._under(True, [], node.body)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.known |= {alias.asname for alias in node.names if alias.name == JOIN and alias.asname}

    def visit_Call(self, node: ast.Call) -> None:
        called = _name(node.func)
        if called == "add_argument":
            given = [a.value for a in node.args if isinstance(a, ast.Constant)]
            self.here.flag = next((flag for flag in FLAGS if flag in given), self.here.flag)
        if called in STARTERS and _starts(node, called):
            self.here.starts.append((f"{self.file}:{node.lineno}", *_started(node), self.maybe))
            self.visit(node.func)
        else:
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._lead(node, node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._lead(node, node.attr)
        self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Leave out `os.environ["RANK"] = ...`, which asks for nothing."""
        if isinstance(node.ctx, ast.Load):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Take the mere name of a launcher's variable as a question for it."""
        self.here.asks |= node.value in VARIABLES

    def _decides(self, test: ast.expr) -> bool:
        """Return whether a condition, or any part of it, may tell one process from several."""
        if isinstance(test, ast.BoolOp):
            return any(map(self._decides, test.values))
        if isinstance(test, ast.UnaryOp):
            return self._decides(test.operand)
        if isinstance(test, ast.Compare):
            return _name(test.left) != "__name__"
        if isinstance(test, ast.Call):
            return _name(test.func) not in ALWAYS
        return _name(test) not in self.even

    def _lead(self, node: ast.expr, name: str) -> None:
        if name in self.known:
            self.here.joins.append((f"{self.file}:{node.lineno}", self.maybe))
        elif not isinstance(getattr(node, "ctx", None), ast.Store):
            self.here.asks |= name in VARIABLES
            self.here.names.append((name, self.maybe))

    def _within(self, name: str, body: list[ast.stmt], owner: str) -> None:
        before = self.here, self.maybe, self.owner
        self.here, self.maybe, self.owner = Scope(), False, owner
        self.scopes.setdefault(name, []).append(self.here)
        for statement in body:
            self.visit(statement)
        self.here, self.maybe, self.owner = before

    def _under(self, depends: bool, always: Sequence[ast.AST], nodes: Sequence[ast.AST]) -> None:
        """Visit the nodes that always run, and those that run under a condition, if `told` so."""
        for node in always:
            self.visit(node)
        before, self.maybe = self.maybe, self.maybe or depends
        for node in nodes:
            self.visit(node)
        self.maybe = before if depends else self.maybe


def _leaves(node: ast.AST) -> bool:
    """Return whether a node holds a `return` of the function that it stands in."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return False
    return isinstance(node, ast.Return) or any(map(_leaves, ast.iter_child_nodes(node)))


def _name(node: ast.AST) -> str:
    """Return `spawn` for both `mp.spawn` and `spawn`, empty for other nodes."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _started(node: ast.Call) -> tuple[Names, Names]:
    """Return the names in the target of a process, and in what the process is given."""
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    target = named.get("target") or named.get("fn") or (node.args[0] if node.args else node)
    given = [name for part in (*node.args, *named.values()) for name in map(_name, ast.walk(part))]
    return frozenset(map(_name, ast.walk(target))) - {""}, frozenset(given) - {""}


def _starts(node: ast.Call, called: str) -> bool:
    depends = TOLD & {keyword.arg or "" for keyword in node.keywords}
    return bool(depends) or (called != "Process" and len(node.args) > 1)
