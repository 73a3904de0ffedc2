"""The search for a generator of random numbers that a data set has to itself.

Each fetch advances it, so that rows which other ranks fetch would draw other numbers. A library's
transform may hold it, where no trial looks: one sample may not even draw.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from autoddp.training.sharing.stamp import Stamp


def own_generator(dataset: Any) -> str:
    """Return where a data set, or what it and its functions reach, has a generator, or nothing.

    The generators of `random`, numpy and torch that all code shares are none: they are watched.
    """
    return Search(dataset).found


class Search(Stamp):
    """A walk by which a stamp finds what there is, without a look at any state.

    Attributes:
        found: The place of the first generator.
    """

    def __init__(self, dataset: Any) -> None:
        self.found = ""
        self._kinds, self._everyones = _known()
        super().__init__(dataset)

    def _check(self, where: str, state: Callable[[], Any]) -> None:
        pass

    def _object(self, where: str, x: Any) -> None:
        if isinstance(x, self._kinds) and not any(x is each for each in self._everyones):
            self.found = self.found or where
        super()._object(where, x)
        self.refused = ""  # what a stamp cannot tell of is no reason to stop


def _known() -> tuple[tuple[type, ...], list[Any]]:
    """Return the classes of generators, and the objects that all code shares."""
    kinds: list[type] = [random.Random, torch.Generator]
    everyones = [random.random.__self__, torch.default_generator]  # type: ignore[attr-defined]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kinds += [numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator]
        everyones.append(numpy.random.rand.__self__)
    return tuple(kinds), everyones
