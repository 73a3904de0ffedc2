"""Where the settings lie that the code of a forward speaks of: globals, classes, objects, lists.

A value there may change without a word to us, so that it is compared at each call.
"""

from __future__ import annotations

from argparse import Namespace
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from torch import Tensor, nn

from autoddp.report import is_users
from autoddp.view.proof.code import functions_of, is_users_class, names_of

LARGEST = 128  # entries; what holds more is data, not settings
DEEPEST = 3  # of what lies within each other
SEVERAL = (dict, list, set, deque)
NONE = (Tensor, nn.Module, tuple, ModuleType, FunctionType)  # hold no settings, or are no space
CODE = (FunctionType, property, classmethod, staticmethod)
# names and values, or values alone; which of the names, or all
Space = tuple[Any, tuple[str, ...] | None]


class Spoken:
    """The functions that the forward of a class may call, and the names that they speak of."""

    def __init__(self, kind: type) -> None:
        self.names, self._functions = set[str](), list[FunctionType]()
        forward = getattr(kind, "forward", None)
        if not isinstance(forward, FunctionType) or not is_users(forward.__code__.co_filename):
            self._kinds, self._data = list[type](), list[Mapping[str, Any]]()
            return
        self._kinds = [one for one in kind.__mro__ if is_users_class(one)]
        self._data = [vars(one) for one in self._kinds]  # each call of vars makes another object
        todo = [forward]
        while todo:
            function = todo.pop()
            if function in self._functions:
                continue
            self._functions.append(function)
            new = set(names_of(function.__code__))
            self.names |= new
            todo += [f for name in new for f in self._called(function, name)]

    def _called(self, function: FunctionType, name: str) -> Iterator[FunctionType]:
        """Yield the functions that a name in a function may stand for: methods, and the file's."""
        held = (vars(one).get(name) for one in self._kinds)
        for method in (*held, function.__globals__.get(name)):
            if isinstance(method, CODE):
                yield from (f for f in functions_of(method) if is_users(f.__code__.co_filename))

    def spaces(self) -> Iterator[Space]:
        """Yield the globals and the data of classes that these names stand for now."""
        spoken = {n for data in self._data for n in self.names.intersection(data)}
        for data in self._data:
            plain = tuple(n for n in spoken if _is_plain(data.get(n)))
            yield data, plain  # also of those that another one has: they may be set here
            yield from _named(data, self.names, plain)
        for space in {id(f.__globals__): f.__globals__ for f in self._functions}.values():
            yield from _named(space, self.names)


def _named(
    values: Mapping[str, Any], names: set[str], known: tuple[str, ...] = ()
) -> Iterator[Space]:
    """Yield what is plain among named values, and the spaces that others are."""
    here = [name for name in names if name in values and name not in known]
    plain = tuple(name for name in here if _is_plain(values[name]))
    if plain:
        yield values, plain
    for name in here:
        yield from spaces_of(values[name], names)


def spaces_of(value: Any, names: set[str], depth: int = 0) -> Iterator[Space]:
    """Yield the space that a value is, and those within it; of an object, what is named alone."""
    if depth == DEEPEST or _is_plain(value) or isinstance(value, NONE):
        return
    if isinstance(value, SEVERAL):
        if len(value) <= LARGEST and (names or type(value) is dict):
            yield value, None
            for each in value.values() if isinstance(value, dict) else value:
                yield from spaces_of(each, names, depth + 1)
        return
    held = _held(value)
    if isinstance(value, (Namespace, SimpleNamespace)) or (
        not isinstance(value, type) and hasattr(type(value), "__dataclass_fields__")
    ):
        yield held, None
        return
    here = [name for name in names if name in held]
    plain = tuple(name for name in here if _is_plain(held[name]))
    if plain:
        yield held, plain
    for name in here:
        yield from spaces_of(held[name], names, depth + 1)


def _held(value: Any) -> Mapping[str, Any]:
    """Return the attributes of an object, or of a class of the script's, past what it answers."""
    if isinstance(value, type):
        return vars(value) if is_users_class(value) else {}
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes))
