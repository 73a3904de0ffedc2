"""What a data set reaches: generators that it has to itself, and the user's functions.

Each fetch advances a generator, so that rows which other ranks fetch would draw other numbers. A
library's transform may hold it, where no trial looks: one sample may not even draw.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from autoddp.report import is_users
from autoddp.training.sharing.code import names_of
from autoddp.training.sharing.stamp import Stamp

# names by which a fetch calls what a data set holds, and those of what makes objects
CALLED = {"__getitem__", "__getitems__", "__call__", "forward"}
MAKING = {"__init__", "__new__", "__post_init__", "__setstate__", "__set_name__"}


class Reached(Stamp):
    """A walk by which a stamp finds what there is, without a look at any state.

    Attributes:
        generator: The place of the first generator, or nothing. The generators of `random`, numpy
            and torch that all code shares are none: they are watched.
    """

    def __init__(self, dataset: Any) -> None:
        self.generator = ""
        self._functions: list[FunctionType] = []
        self._kinds, self._everyones = _known()
        super().__init__(dataset)

    def called(self) -> list[FunctionType]:
        """Return the user's functions that a fetch may call, by the names that they speak of."""
        names, found, rest = set(CALLED), list[FunctionType](), self._functions
        while True:
            new = [f for f in rest if f.__name__ in names or not _is_method(f)]
            if not new:
                return found
            found += new
            rest = [f for f in rest if f not in new]
            names = names.union(*(names_of(f.__code__) for f in new)) - MAKING

    def _check(self, where: str, state: Callable[[], Any]) -> None:
        pass

    def _object(self, where: str, x: Any) -> None:
        if isinstance(x, self._kinds) and not any(x is each for each in self._everyones):
            self.generator = self.generator or where
        super()._object(where, x)
        self.refused = ""  # what a stamp cannot tell of is no reason to stop

    def _function(self, function: FunctionType) -> None:
        if is_users(function.__code__.co_filename):
            self._functions.append(function)
        super()._function(function)


def _is_method(function: FunctionType) -> bool:
    """Return whether a function is in a class: others are held for what they do."""
    return "." in function.__qualname__.rpartition("<locals>.")[2]


def _known() -> tuple[tuple[type, ...], list[Any]]:
    """Return the classes of generators, and the objects that all code shares."""
    kinds: list[type] = [random.Random, torch.Generator]
    everyones = [random.random.__self__, torch.default_generator]  # type: ignore[attr-defined]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kinds += [numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator]
        everyones.append(numpy.random.rand.__self__)
    return tuple(kinds), everyones
