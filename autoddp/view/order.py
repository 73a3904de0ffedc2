"""An order of parameters that is the same on all ranks: that of `module.parameters()`.

The order of leaves in the autograd graph may differ between ranks: for a single row torch computes
some layers by other operators.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn


def parameters_of(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of a module and its parts, in torch's order.

    Libraries answer `parameters()` and `named_parameters()` in their own way: Keras makes some.
    """
    seen: set[int] = set()
    todo: list[Any] = [module]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        for parameter in one._parameters.values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
        todo += reversed(one._modules.values())


class Order:
    """Numbers of parameters, in the order of the first calls of their modules."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._count = 0

    def note(self, leaves: Iterable[Tensor]) -> None:
        """Give a number to each new leaf."""
        for leaf in leaves:
            if self._number(leaf) is None:
                self._numbers[id(leaf)] = weakref.ref(leaf), self._count
                self._count += 1

    def sorted(self, leaves: Iterable[Tensor]) -> list[Tensor]:
        """Sort leaves by number; those without a number follow, in the order given."""
        given = list(leaves)
        return [given[k] for k in self.positions(given)]

    def positions(self, leaves: Sequence[Tensor]) -> list[int]:
        """Return the positions of leaves in the order in which `sorted` returns them."""
        numbers = [*map(self._number, leaves)]
        if None not in numbers:
            return sorted(range(len(numbers)), key=numbers.__getitem__)  # type: ignore[arg-type]
        return sorted(range(len(numbers)), key=lambda k: (numbers[k] is None, numbers[k] or 0))

    def _number(self, leaf: Tensor) -> int | None:
        reference, number = self._numbers.get(id(leaf), (None, 0))
        return number if reference is not None and reference() is leaf else None
