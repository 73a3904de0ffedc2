"""Whether a function may write into what outlives its call, as its source tells.

One sample that was tried shows no write that another sample makes: of a file that cannot be opened,
or from the second epoch on. What a function makes itself it may write into, and what it is given.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from autoddp.training.sharing.stamp import ATOMS
from autoddp.view.proof.code import EMPTY, content_of

CHANGE = {
    *("append", "appendleft", "add", "update", "extend", "extendleft", "insert", "remove", "pop"),
    *("popleft", "popitem", "clear", "setdefault", "discard", "sort", "reverse", "put"),
    *("put_nowait", "write", "writelines", "subtract", "move_to_end", "__setitem__"),
    *("__setattr__", "__delitem__", "resize", "fill", "itemset"),
}
CHANGES_FIRST = {"setattr", "delattr", "next", "shuffle", "heappush", "heappop", "heapify"}
HANDS_OUT = {"get", "setdefault", "values", "items", "__getitem__"}  # of what it holds itself
Names = set[str]


def may_write(functions: Iterable[FunctionType]) -> str:
    """Return the place of a function that may write into what outlives its call, or nothing."""
    for function in functions:
        found = _nodes(function.__code__)
        if not found or any(Reading(node, function).writes() for node in found):
            return f"{function.__qualname__}, line {function.__code__.co_firstlineno}"
    return ""


class Reading:
    """One reading of a function's source.

    Attributes:
        shared: Its names for what outlives the call.
    """

    def __init__(self, node: Any, function: FunctionType) -> None:
        self.node, self.function = node, function
        code = function.__code__
        self.local: Names = {*code.co_varnames, *code.co_cellvars}
        inner = [each for each in ast.walk(node) if isinstance(each, ast.arg)]
        self.local |= {each.arg for each in inner}
        self.local |= set(_names(node, ast.Store)) - self._declared()
        self.shared: Names = {*code.co_varnames[: code.co_argcount][:1]} & {"self", "cls"}
        for _ in range(2):  # a name of a name
            self._alias()

    def writes(self) -> bool:
        """Return whether it may write into anything shared."""
        return any(self._is_write(node) for node in ast.walk(self.node))

    def _declared(self) -> Names:
        found = (n.names for n in ast.walk(self.node) if isinstance(n, (ast.Global, ast.Nonlocal)))
        return {name for names in found for name in names}

    def _alias(self) -> None:
        for node in ast.walk(self.node):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                held = self._is_shared(node.value)
            elif isinstance(node, (ast.For, ast.comprehension)):
                targets, held = [node.target], self._is_shared(node.iter)
            else:
                continue
            if held:
                self.shared |= {name for target in targets for name in _names(target, ast.Store)}

    def _is_write(self, node: Any) -> bool:
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            stored = isinstance(node.ctx, (ast.Store, ast.Del))
            return stored and self._is_shared(node.value, of_code=True)
        if isinstance(node, ast.Name):
            return not isinstance(node.ctx, ast.Load) and node.id in self._declared()
        if not isinstance(node, ast.Call):
            return False
        called = node.func
        name = getattr(called, "attr", getattr(called, "id", ""))
        if name in CHANGES_FIRST and node.args and self._is_shared(node.args[0]):
            return True
        if not isinstance(called, ast.Attribute):
            return False
        in_place = name.endswith("_") and not name.endswith("__")
        return (name in CHANGE or in_place) and self._is_shared(called.value)

    def _is_shared(self, node: Any, of_code: bool = False) -> bool:
        """Return whether an expression is, or is part of, what outlives the call.

        Modules, classes and functions hold much that is; a call of them changes what they are given
        at most, so they count `of_code` alone.
        """
        parts = 0
        while (inner := _held_in(node)) is not None:
            node, parts = inner, parts + 1
        if isinstance(node, ast.Call):
            method = node.func
            if not isinstance(method, ast.Attribute) or method.attr not in HANDS_OUT:
                return False
            return self._is_shared(method.value)
        if not isinstance(node, ast.Name):
            return False
        if node.id in self.local:
            return node.id in self.shared
        value = _value(self.function, node.id)
        if isinstance(value, type):
            return of_code or bool(parts)
        if isinstance(value, (ModuleType, FunctionType, BuiltinFunctionType)):
            return of_code
        return value is not None and type(value) not in ATOMS


def _value(function: FunctionType, name: str) -> Any:
    """Return what a name that is not the function's own stands for, None if nothing yet."""
    free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if name in free:
        value = content_of(free[name])
        return None if value is EMPTY else value
    return function.__globals__.get(name, getattr(builtins, name, None))


def _held_in(node: Any) -> Any:
    """Return what an expression takes an attribute or an element of, None if it does not."""
    return node.value if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)) else None


def _names(tree: Any, how: Any) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, how):
            yield node.id


def _nodes(code: CodeType) -> list[Any]:
    """Return the function's node in the source, several if lambdas share a line; none if unread."""
    return [node for line, node in _functions(code.co_filename) if line == code.co_firstlineno]


@functools.lru_cache(maxsize=64)
def _functions(path: str) -> list[tuple[int, Any]]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return []
    return list(_listed(tree))


def _listed(tree: ast.AST) -> Iterator[tuple[int, Any]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield min([node.lineno, *(d.lineno for d in node.decorator_list)]), node
        elif isinstance(node, ast.Lambda):
            yield node.lineno, node
