"""One order of the parameters for all ranks.

Graphs of split calls may differ between ranks: for one row torch computes some layers by other
operators, in another order. The order of leaves in the graph is therefore no order to rely on; that
of `module.parameters()` is.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor


class Order:
    """The numbers of parameters, in the order in which modules show them at their first calls."""

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
        """Sort leaves by number; those that no module showed come last, as the graph has them."""
        found = [(self._number(leaf), leaf) for leaf in leaves]
        known = sorted((n, k) for k, (n, _) in enumerate(found) if n is not None)
        return [found[k][1] for _, k in known] + [leaf for n, leaf in found if n is None]

    def numbers(self, leaves: Iterable[Tensor]) -> tuple[int | None, ...]:
        """Return the numbers of leaves, None for those that no module showed."""
        return tuple(map(self._number, leaves))

    def _number(self, leaf: Tensor) -> int | None:
        reference, number = self._numbers.get(id(leaf), (None, 0))
        return number if reference is not None and reference() is leaf else None
