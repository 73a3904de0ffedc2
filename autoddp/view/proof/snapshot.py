"""The state that a forward leaves behind in Python: compared and put back after a trial.

The proof runs user code that one process would not have run. Counters, lists, tensors and buffers
of the module, of its class and of objects of the user's classes that it holds, globals of its file
and what its functions keep are as before afterwards; a module that changed one is not row-wise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from autoddp import torch_internals
from autoddp.report import is_users
from autoddp.view.proof import opaque
from autoddp.view.proof.code import (
    CODE,
    EMPTY,
    called_by,
    content_of,
    data_in,
    forwards_of,
    functions_of,
    is_users_class,
    may_hold_state,
    names_of,
)
from autoddp.view.proof.counts import unnoted

DEPTH = 5
PLAIN = (bool, int, float, complex, str, bytes, type(None))
MOST_OF_ONE = 2**24  # elements; a larger tensor is data, not state
MOST = 2**30  # bytes of parameters that are copied, to put back what a forward wrote into them


class Snapshot:
    """The Python state and the tensors of a module tree.

    Attributes:
        refused: What could not be put back; empty if nothing. Else there must be no trial.
        large: The place of data that is too large to be copied, which is not put back.
        large_types: The data types of all that is so large, such as "float32".
    """

    def __init__(self, module: Any = None, dataset: Any = None, given: Iterable[Any] = ()) -> None:
        self._seen: dict[int, Any] = {}  # keeps what it saw alive, so that ids stay theirs
        self._checks: list[Callable[[], str | None]] = []
        self._names: set[str] = set()  # names that the code that was seen speaks of
        self._advancing: list[str] = []  # globals that are iterators
        self.refused, self.large, self.large_types = "", "", set[str]()
        if dataset is not None:
            self._value(type(dataset).__name__, dataset, 0)
        for value in given:
            self._value("what it is given", value, 0)
        if module is not None:
            self._module(module)
        for name in self._names.intersection(self._advancing):
            why = f"the global {name} is an iterator, which cannot be put back"
            self.refused = self.refused or why

    def _module(self, module: nn.Module) -> None:
        if id(module) in self._seen:
            return
        self._seen |= {id(part): part for part in module.modules()}
        keep = sum(p.nbytes for p in nn.Module.parameters(module)) <= MOST
        for name, part in module.named_modules():
            counts = (
                {id(b) for b in part.buffers(recurse=False)}
                if isinstance(part, torch_internals.BatchNorm)
                else set()
            )
            for key, value in part.named_buffers(recurse=False):
                self._tensor(f"buffer {name}.{key}", value, ours=id(value) in counts)
            for key, value in part.named_parameters(recurse=False):
                if keep:
                    self._tensor(f"parameter {name}.{key}", value)
            self._namespace(f"{name or type(part).__name__}", vars(part), 0)
        for function in forwards_of(module):
            self._function(function)
        for kind in {type(part) for part in module.modules()}:
            self._classes(kind)

    def put_back(self) -> str | None:
        """Restore all; return what had changed first, in words, if anything had."""
        found = [said for check in self._checks if (said := check()) is not None]
        return found[0] if found else None

    def _namespace(self, where: str, space: dict[str, Any], depth: int) -> None:
        before = dict(space)

        def check() -> str | None:
            if space.keys() == before.keys() and all(_same(space[k], before[k]) for k in before):
                space.update(before)  # what is equal may be a size that a trial has noted
                return None
            names = [
                k
                for k in {**before, **space}
                if k not in before or k not in space or not _same(space[k], before[k])
            ]
            space.clear()
            space.update(before)
            return f"it leaves {names[0]} on {where}"

        self._checks.append(check)
        for key, value in before.items():
            self._value(f"{where}.{key}", value, depth + 1)

    def _value(self, where: str, value: Any, depth: int) -> None:
        if depth > DEPTH or isinstance(value, type) or id(value) in self._seen:
            return
        if isinstance(value, nn.Module):  # one that is no part of the tree: in a list, or a closure
            self._module(value)
        elif isinstance(value, Tensor):
            self._tensor(where, value)
        elif isinstance(value, (list, deque)):
            self._sequence(where, value, depth)
        elif isinstance(value, dict):
            self._seen[id(value)] = value
            self._namespace(where, value, depth)
        elif isinstance(value, set):
            self._set(where, value)
        elif isinstance(value, tuple):
            for item in value:
                self._value(where, item, depth + 1)
        else:
            self._object(where, value, depth)

    def _object(self, where: str, value: Any, depth: int) -> None:
        for part in called_by(value):
            self._value(where, part, depth)
        if isinstance(value, FunctionType):
            self._function(value)
        elif (check := opaque.kept(value)) is not None:
            self._seen[id(value)] = value
            self._checks.append(lambda: f"it changes {where}" if check() else None)
        elif opaque.is_large(value):
            self._large(where, value)
        elif opaque.advances(value):
            self.refused = self.refused or f"{where} is an iterator, which cannot be put back"
        elif hasattr(value, "__dict__") and may_hold_state(value):
            self._seen[id(value)] = value
            self._namespace(where, vars(value), depth)
            self._classes(type(value))

    def _tensor(self, where: str, value: Tensor, ours: bool = False) -> None:
        plain = type(value) is Tensor or type(value) is nn.Parameter
        if id(value) in self._seen or not plain or value.is_inference():
            return
        if value.layout is not torch.strided or value.is_meta:
            return
        if value.numel() > opaque.MOST:
            self._large(where, value)
            return
        self._seen[id(value)] = value
        check = opaque.tensor(value)
        self._checks.append(lambda: f"it changes {where}" if check() and not ours else None)

    def _large(self, where: str, value: Any) -> None:
        self.large = self.large or where
        self.large_types.add(str(value.dtype).removeprefix("torch."))

    def _sequence(self, where: str, value: Any, depth: int) -> None:
        self._seen[id(value)] = value
        before = list(value)

        def check() -> str | None:
            same = len(value) == len(before) and all(map(_same, value, before))
            if not same or any(a is not b for a, b in zip(value, before, strict=True)):
                value.clear()
                value.extend(before)
            return None if same else f"it changes the list {where}"

        self._checks.append(check)
        for item in before:
            self._value(where, item, depth + 1)

    def _set(self, where: str, value: set[Any]) -> None:
        before = set(value)

        def check() -> str | None:
            if value == before:
                return None
            value.clear()
            value.update(before)
            return f"it changes the set {where}"

        self._checks.append(check)

    def _globals(self, space: dict[str, Any]) -> None:
        if id(space) in self._seen:
            return
        self._seen[id(space)] = space
        before = data_in(space)

        def check() -> str | None:
            now = data_in(space)
            changed = [
                k
                for k in {**before, **now}
                if not (k in before and k in now and _same(now[k], before[k]))
            ]
            for key in changed:
                space.pop(key, None)
            space.update(before)
            return f"it changes the global {changed[0]}" if changed else None

        self._checks.append(check)
        for key, value in before.items():
            if opaque.advances(value):
                self._advancing.append(key)
            elif not isinstance(value, nn.Module):  # those that the code speaks of come with it
                self._value(key, value, DEPTH - 1)

    def _function(self, function: FunctionType) -> None:
        """Note what a function keeps in its file, and in variables of the function around it."""
        if not is_users(function.__code__.co_filename):
            return
        self._seen[id(function)] = function
        self._globals(function.__globals__)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            content = content_of(cell)
            if isinstance(content, FunctionType):
                self._value(name, content, DEPTH - 1)
            elif content is not EMPTY and not isinstance(content, CODE):
                self._cell(name, cell)
        names = set(names_of(function.__code__))
        self._names |= names
        for name in names:
            self._called(function.__globals__.get(name), names)

    def _called(self, code: Any, names: set[str]) -> None:
        """Note what a function may call, of the user's: what it changes is put back, too."""
        if isinstance(code, (FunctionType, nn.Module)):
            self._value("what it calls", code, DEPTH - 1)
        elif isinstance(code, type):
            self._classes(code)
        elif isinstance(code, ModuleType) and is_users(getattr(code, "__file__", None) or "<"):
            self._globals(vars(code))
            for name in names:
                if not isinstance(found := vars(code).get(name), ModuleType):
                    self._called(found, names)

    def _cell(self, name: str, cell: CellType) -> None:
        before = cell.cell_contents

        def check() -> str | None:
            same, cell.cell_contents = _same(content_of(cell), before), before
            return None if same else f"it changes {name} of the function around it"

        self._checks.append(check)
        self._value(name, before, DEPTH - 1)

    def _classes(self, kind: type) -> None:
        """Note the user's classes among `kind` and its bases."""
        for one in kind.__mro__:
            if is_users_class(one):
                self._class(one)

    def _class(self, kind: type) -> None:
        if id(kind) in self._seen:
            return
        self._seen[id(kind)] = kind
        before = data_in(vars(kind))

        def check() -> str | None:
            now = data_in(vars(kind))
            changed = [
                k
                for k in {**before, **now}
                if not (k in before and k in now and _same(now[k], before[k]))
            ]
            for key in {*changed} & {*now}:
                delattr(kind, key)
            for key, value in before.items():
                if key in changed or now[key] is not value:
                    setattr(kind, key, value)
            return f"it changes {kind.__name__}.{changed[0]}" if changed else None

        self._checks.append(check)
        for key, value in before.items():
            self._value(f"{kind.__name__}.{key}", value, DEPTH - 1)
        for method in vars(kind).values():
            for function in functions_of(method):
                self._value(kind.__name__, function, DEPTH - 1)


def _same(a: Any, b: Any) -> bool:
    return a is b or (unnoted(a) is unnoted(b) and isinstance(a, PLAIN) and a == b)
