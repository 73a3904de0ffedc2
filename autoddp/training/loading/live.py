"""The random generators that are objects: noticed when they are new, or found in a data set."""

from __future__ import annotations

import gc
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch import Tensor

MANY = 1000  # items of a container, above which it holds samples and no settings
REACH = 10_000  # objects that one search looks at
LEAVES = (
    *(str, bytes, bytearray, int, float, type(None), Tensor, ModuleType, CodeType),
    *(GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType),
)
CONTAINERS = (dict, list, tuple, set, frozenset, deque)


class LiveGenerators:
    """The generators of this process, other than the global ones.

    Looking for them among all objects would cost as much as there is in memory. An object is in the
    youngest generation of Python's collector until a collection: what is there is looked at before
    each, and at a search, so that each object is looked at once. The collector does not track a
    `torch.Generator`: it is found where the data set holds it, or when a fetch draws from it.
    """

    def __init__(self) -> None:
        self._older = _generators_among(gc.get_objects())
        self._crowd = 64  # of them, before those that nobody else holds are dropped

    def watch(self, undo: ExitStack) -> None:
        """Look at new objects before each collection from now on."""
        gc.callbacks.append(self._note)
        undo.callback(gc.callbacks.remove, self._note)

    def new(self, *holders: Any, since: Iterable[Any] = ()) -> list[Any]:
        """Return the generators that are tracked or reachable from `holders`, without `since`."""
        self.look()
        found = {id(x): x for x in (*self._older, *_reachable(holders))}
        for x in (*global_generators().values(), *since):
            found.pop(id(x), None)
        return list(found.values())

    def look(self) -> None:
        """Look at the objects of the youngest generation."""
        # extended in place: a collection may begin at any moment, on any thread
        self._older += _generators_among(gc.get_objects(0))
        if len(self._older) > self._crowd:
            older, self._older = self._older, []
            distinct = [*{id(x): x for x in older}.values(), object()]
            del older
            held = [*map(sys.getrefcount, distinct)]
            alone = held[-1]  # of an object that nobody else holds
            pairs = zip(distinct, held, strict=True)
            self._older += [x for x, count in pairs if count > alone]
            self._crowd = max(64, 2 * len(self._older))

    def _note(self, phase: str, info: Any) -> None:
        if phase == "start":
            self.look()


def global_generators() -> dict[str, Any]:
    """Return the global generators of `random`, numpy and torch, without those of devices."""
    python: Any = random  # a script may replace its functions
    found = {"random": python._inst, "torch on the CPU": torch.default_generator}
    numpy = sys.modules.get("numpy")
    return found if numpy is None else found | {"numpy": numpy.random.mtrand._rand}


def _kinds() -> set[type]:
    numpy = sys.modules.get("numpy.random")  # may be half imported
    found = (getattr(numpy, name, random.Random) for name in ("Generator", "RandomState"))
    return {random.Random, torch.Generator, *found}


def _generators_among(objects: list[Any]) -> list[Any]:
    kinds = _kinds()
    if kinds.isdisjoint(map(type, objects)):
        return []
    return [x for x in objects if type(x) in kinds]


def _reachable(holders: Iterable[Any]) -> Iterator[Any]:
    """Yield the generators that are reachable, the nearest first, within limits.

    Of what a function calls only its module's generators are looked at.
    """
    kinds, todo, seen = _kinds(), deque(holders), set[int]()
    while todo and len(seen) < REACH:
        x = todo.popleft()
        kind = type(x)  # `isinstance` would ask a lazy object
        if id(x) in seen or issubclass(kind, LEAVES):
            continue
        seen.add(id(x))
        if kind in kinds:
            yield x
        elif kind is FunctionType:
            todo += (x.__closure__, x.__defaults__, x.__kwdefaults__)
            if id(x.__globals__) not in seen:
                seen.add(id(x.__globals__))
                todo += (y for y in [*x.__globals__.values()] if type(y) in kinds)
        elif issubclass(kind, type):
            todo += (y for owner in x.__mro__ for y in _own(owner))
        elif not _is_large(x, kind):
            todo += gc.get_referents(x)


def _own(owner: type) -> list[Any]:
    """Return what a class holds: its functions, and attributes that the language does not make."""
    items = [*vars(owner).items()]
    return [y for name, y in items if type(y) is FunctionType or not name.startswith("__")]


def _is_large(x: Any, kind: type) -> bool:
    """Return whether `x` is a container of more than `MANY` items."""
    sizes: Iterable[Callable[[Any], int]] = (c.__len__ for c in CONTAINERS if issubclass(kind, c))
    return any(size(x) > MANY for size in sizes)
