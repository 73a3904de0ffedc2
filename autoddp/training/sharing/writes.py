"""Whether a function may write into what outlives its call, as its source tells.

One sample that was tried shows no write that another sample makes: of a file that cannot be opened,
or from the second epoch on. What a function makes itself it may write into, and what it is given,
but where that is the data set's. What it prints, logs or writes to a file counts, too.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from autoddp.training.sharing.code import EMPTY, content_of
from autoddp.training.sharing.handed_out import called, handed_out
from autoddp.training.sharing.source import nodes_of
from autoddp.training.sharing.stamp import ATOMS

CHANGE = {
    *("append", "appendleft", "add", "update", "extend", "extendleft", "insert", "remove", "pop"),
    *("popleft", "popitem", "clear", "setdefault", "discard", "sort", "reverse", "rotate", "put"),
    *("put_nowait", "write", "writelines", "subtract", "move_to_end", "__setitem__"),
    *("__setattr__", "__delitem__", "resize", "fill", "itemset"),
}
CHANGES_FIRST = {
    *("setattr", "delattr", "next", "shuffle", "heappush", "heappop", "heapify", "heappushpop"),
    *("heapreplace", "insort", "insort_left", "insort_right", "at", "copyto", "putmask", "place"),
}
# what acts on the world: each rank would do so for its rows alone, and in no order
ACTS = {
    *("print", "warn", "debug", "info", "warning", "error", "critical", "exception", "write_text"),
    *("write_bytes", "touch", "mkdir", "makedirs", "unlink", "rmdir", "rmtree", "rename", "move"),
    *("save", "savez", "savez_compressed", "savetxt", "savefig", "imwrite", "imsave", "dump"),
    *("to_csv", "to_pickle", "tofile", "copyfile", "copy2", "copytree", "symlink", "urlretrieve"),
}
OPEN = "open"  # if it is given a mode that writes
BY_CALL = {"__call__", "forward"}  # what an object that is called runs
Names = set[str]


def may_write(
    functions: Iterable[FunctionType],
    owner: Any = None,
    acts: bool = True,
    types: Collection[str] = (),
) -> str:
    """Return the place of a function that may write into what outlives its call, or nothing.

    Args:
        functions: Whatever a fetch may call.
        owner: The data set, in whose lists elements may be seen to be numbers and texts.
        acts: Whether what it prints, logs and writes to files counts, too.
        types: The data types of data that no trial has seen unchanged: a conversion to one of them
            gives the data itself.
    """
    functions, given = list(functions), set[str]()
    atoms = cache(lambda: _atoms(owner))  # it looks at every element: only where that matters
    while True:
        passed = set(given)
        for function in functions:
            found, takes = nodes_of(function.__code__), function.__name__ in given
            readings = [Reading(node, function, takes, atoms, types) for node in found]
            if not found or any(reading.writes(acts) for reading in readings):
                return f"{function.__qualname__}, line {function.__code__.co_firstlineno}"
            passed = passed.union(*(reading.given() for reading in readings))
        if passed == given:
            return ""
        given = passed


class Reading:
    """One reading of a function's source.

    Attributes:
        shared: Its names for what outlives the call; with `takes`, its parameters are among them.
        itself: Its name for the object whose method it is, if it is one.
    """

    def __init__(
        self,
        node: Any,
        function: FunctionType,
        takes: bool = False,
        atoms: Callable[[], dict[str, set[str]]] = dict,
        types: Collection[str] = (),
    ) -> None:
        self.node, self.function, self._atoms, self._acts = node, function, atoms, True
        self._types = types
        code = function.__code__
        self.local: Names = {*code.co_varnames, *code.co_cellvars}
        inner = [each for each in ast.walk(node) if isinstance(each, ast.arg)]
        self.local |= {each.arg for each in inner}
        self.local |= set(_names(node, ast.Store)) - self._declared()
        self.itself = (*code.co_varnames, "")[0] if _is_method(function) else ""
        count = code.co_argcount if takes else int(bool(self.itself))
        self.shared: Names = set(code.co_varnames[:count])
        self._given = set(self.shared)
        for _ in range(2):  # a name of a name
            self._alias()

    def writes(self, acts: bool = True) -> bool:
        """Return whether it may write into anything shared, or act on the world."""
        self._acts = acts
        return any(self._is_write(node) for node in ast.walk(self.node))

    def given(self) -> Names:
        """Return the names of functions that it gives anything shared."""
        calls = [node for node in ast.walk(self.node) if isinstance(node, ast.Call)]
        handed = [c for c in calls if any(self._is_shared(x) for x in _given_to(c))]
        return {called(call) for call in handed} | (BY_CALL if handed else set())

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
            if isinstance(node.ctx, (ast.Store, ast.Del)):
                return self._is_shared(node.value, of_code=True)
            return getattr(node, "attr", "") in CHANGE and self._is_held(node.value)
        if isinstance(node, ast.Name):
            return not isinstance(node.ctx, ast.Load) and node.id in self._declared()
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            return node.target.id in self.shared and not self._is_own(node)
        return isinstance(node, ast.Call) and self._is_change(node)

    def _is_own(self, node: Any) -> bool:
        """Return whether `name += value` makes a text, or changes what the function has made."""
        if isinstance(node.value, ast.JoinedStr) or type(getattr(node.value, "value", 0)) is str:
            return True
        name = node.target.id
        if all(map(self._is_atom, self._held_by(name))):
            return True
        made = [a for a in ast.walk(self.node) if isinstance(a, ast.Assign) and _stores(a, name)]
        always = [a for a in getattr(self.node, "body", ()) if a in made and a.lineno < node.lineno]
        return bool(always) and not any(
            self._is_shared(a.value) for a in made if a.lineno >= always[-1].lineno
        )

    def _held_by(self, name: str) -> list[Any]:
        """Return the shared expressions that a name stands for, None for what is none's element."""
        found: list[Any] = [None] if name in self._given else []
        for node in ast.walk(self.node):
            if isinstance(node, ast.Assign) and _stores(node, name):
                found += [node.value] if self._is_shared(node.value) else []
            elif isinstance(node, (ast.For, ast.comprehension, ast.NamedExpr, ast.AnnAssign)):
                found += [None] if _stores(node.target, name) else []
        return found

    def _is_atom(self, node: Any) -> bool:
        """Return whether an expression is an element of a list that holds numbers and texts."""
        held = getattr(node, "value", None)
        by_place = isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice)
        if not (by_place and isinstance(held, ast.Attribute)):
            return False
        return held.attr in self._atoms().get(_class_of(self.function), ())

    def _is_change(self, call: Any) -> bool:
        """Return whether a call changes what is shared, or the world."""
        name, of = called(call), getattr(call.func, "value", None)
        if name in ACTS and not self._is_itself(of):
            return self._acts
        if name == OPEN and _opens_to_write(call):
            return self._acts
        if of is not None and name.endswith("_") and not name.endswith("__") and self._is_held(of):
            return True
        filled = [each.value for each in call.keywords if each.arg == "out"]
        filled += call.args[:1] if name in CHANGES_FIRST else []
        return any(map(self._is_shared, filled))

    def _is_itself(self, node: Any) -> bool:
        """Return whether an expression is the object whose method this is: its own are read."""
        return bool(self.itself) and getattr(node, "id", "") == self.itself

    def _is_held(self, node: Any) -> bool:
        return self._is_shared(node) and not self._is_itself(node)

    def _is_shared(self, node: Any, of_code: bool = False) -> bool:
        """Return whether an expression is, or is part of, what outlives the call.

        Modules, classes and functions hold much that is; a call of them changes what they are given
        at most, so they count `of_code` alone.
        """
        parts = list[Any]()
        while (inner := _held_in(node)) is not None:
            parts.append(node)
            node = inner
        if not isinstance(node, ast.Name):
            return any(map(self._is_shared, handed_out(node, self._types)))
        if node.id in self.local:
            return node.id in self.shared
        value = _value(self.function, node.id)
        while isinstance(value, ModuleType) and parts and isinstance(parts[-1], ast.Attribute):
            value = getattr(value, parts.pop().attr, None)
        if isinstance(value, (type, FunctionType)):
            return of_code or bool(parts)
        if isinstance(value, (ModuleType, BuiltinFunctionType)):
            return of_code
        return value is not None and type(value) not in ATOMS


def _atoms(owner: Any) -> dict[str, set[str]]:
    """Return, by class, the names of lists and arrays whose elements nobody can write into."""
    found = dict[str, set[str]]()
    while owner is not None:
        held = getattr(owner, "__dict__", {})
        names = {name for name, value in held.items() if _holds_atoms(value)}
        for kind in type(owner).__mro__:
            found[kind.__name__] = found.get(kind.__name__, names) & names
        owner = held.get("dataset")
    return found


def _class_of(function: FunctionType) -> str:
    return "".join(function.__qualname__.split(".")[-2:-1])


def _holds_atoms(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(type(x) in ATOMS or (type(x) is tuple and _holds_atoms(x)) for x in value)
    return type(value).__name__ == "ndarray" and value.ndim == 1 and value.dtype != object


def _is_method(function: FunctionType) -> bool:
    return "." in function.__qualname__.rpartition("<locals>.")[2]


def _given_to(call: Any) -> list[Any]:
    return [*call.args, *(each.value for each in call.keywords)]


def _opens_to_write(call: Any) -> bool:
    """Return whether a call of `open` may write: its mode says so, or nobody can tell."""
    modes = [each.value for each in call.keywords if each.arg == "mode"]
    modes += call.args[1:2] if isinstance(call.func, ast.Name) else call.args[:1]
    texts = [each.value for each in modes if isinstance(each, ast.Constant)]
    unknown = len(texts) < len(modes) and isinstance(call.func, ast.Name)
    return unknown or any({*"wax+"} & {*str(text)} and len(str(text)) <= 3 for text in texts)


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


def _stores(tree: Any, name: str) -> bool:
    return name in _names(tree, ast.Store)


def _names(tree: Any, how: Any) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, how):
            yield node.id
