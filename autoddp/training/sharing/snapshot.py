"""The state that a forward leaves behind in Python: compared and put back after a trial.

The proof runs user code that one process would not have run. Counters, lists, tensors and buffers
of the module, of its class and of objects of the user's classes that it holds, globals of its file
and what its functions keep are as before afterwards; a module that changed one is not row-wise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from autoddp import torch_internals
from autoddp.report import is_users
from autoddp.training.sharing import contents, opaque
from autoddp.training.sharing.code import (
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
from autoddp.training.sharing.contents import Changed

DEPTH = 5
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

    def _check(self, keep: Changed, say: Callable[[str], str]) -> None:
        """Have a check put back, and say of the first name that has changed what it does."""
        self._checks.append(lambda: say(changed[0]) if (changed := keep()) else None)

    def _namespace(self, where: str, space: dict[str, Any], depth: int) -> None:
        self._check(contents.names(space), lambda name: f"it leaves {name} on {where}")
        for key, value in [*space.items()]:
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
        elif may_hold_state(value):
            self._seen[id(value)] = value
            self._attributes(where, value, depth)

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
        self._namespace(where, vars(value), DEPTH - 1)
        self._checks.append(lambda: f"it changes {where}" if check() and not ours else None)

    def _large(self, where: str, value: Any) -> None:
        self.large = self.large or where
        self.large_types.add(str(value.dtype).removeprefix("torch."))

    def _sequence(self, where: str, value: Any, depth: int) -> None:
        self._seen[id(value)] = value
        self._check(contents.elements(value), lambda _: f"it changes the list {where}")
        for item in [*value]:
            self._value(where, item, depth + 1)
        if may_hold_state(value):
            self._attributes(where, value, depth)

    def _set(self, where: str, value: set[Any]) -> None:
        self._check(contents.members(value), lambda _: f"it changes the set {where}")

    def _attributes(self, where: str, value: Any, depth: int) -> None:
        """Note what an object holds, by its `__dict__` and by slots."""
        if isinstance(own := getattr(value, "__dict__", None), dict):
            self._namespace(where, own, depth)
        if held := contents.slots(value):
            keep = contents.attributes(value, partial(contents.slots, value))
            self._check(keep, lambda name: f"it leaves {name} on {where}")
            for key, each in held.items():
                self._value(f"{where}.{key}", each, depth + 1)
        self._classes(type(value))

    def _globals(self, space: dict[str, Any]) -> None:
        if id(space) in self._seen:
            return
        self._seen[id(space)] = space
        self._check(contents.file(space), lambda name: f"it changes the global {name}")
        for key, value in data_in(space).items():
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
        self._namespace(function.__name__, vars(function), DEPTH - 1)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._value(f"a default of {function.__name__}", default, DEPTH - 1)
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
        self._check(
            contents.variable(cell), lambda _: f"it changes {name} of the function around it"
        )
        self._value(name, cell.cell_contents, DEPTH - 1)

    def _classes(self, kind: type) -> None:
        """Note the user's classes among `kind` and its bases."""
        for one in kind.__mro__:
            if is_users_class(one):
                self._class(one)

    def _class(self, kind: type) -> None:
        if id(kind) in self._seen:
            return
        self._seen[id(kind)] = kind
        keep = contents.attributes(kind, lambda: data_in(vars(kind)))
        self._check(keep, lambda name: f"it changes {kind.__name__}.{name}")
        for key, value in data_in(vars(kind)).items():
            self._value(f"{kind.__name__}.{key}", value, DEPTH - 1)
        for method in vars(kind).values():
            for function in functions_of(method):
                self._value(kind.__name__, function, DEPTH - 1)
