"""How the rows of a batch are cut over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoddp.view.state import View


class Cuts:
    """How many rows each rank holds: contiguous, in rank order. One object for each distinct cut.

    Attributes:
        sizes: Rows of every rank.
        total: Rows of the batch.
        start: The first row of this rank.
        mine: Rows of this rank.
    """

    __slots__ = ("even", "largest", "mine", "sizes", "smallest", "start", "total", "view")

    def __init__(self, view: View, sizes: tuple[int, ...]) -> None:
        rank = view.group.rank
        self.view, self.sizes = view, sizes
        self.total, self.start, self.mine = sum(sizes), sum(sizes[:rank]), sizes[rank]
        self.largest, self.smallest = max(sizes), min(sizes)
        self.even = self.largest == self.smallest

    def times(self, factor: int) -> Cuts:
        """The cuts of a batch in which each row became `factor` rows."""
        return self if factor == 1 else self.view.cuts(tuple(s * factor for s in self.sizes))

    def over(self, factor: int) -> Cuts | None:
        """The inverse of `times`, if every rank's rows come in groups of `factor`."""
        if factor == 1:
            return self
        if factor < 1 or any(s % factor for s in self.sizes):
            return None
        return self.view.cuts(tuple(s // factor for s in self.sizes))

    def __repr__(self) -> str:
        return f"Cuts{self.sizes}"


def even_sizes(total: int, ranks: int) -> tuple[int, ...]:
    """`total` rows over `ranks`, contiguous, sizes that differ by one at most."""
    each, more = divmod(total, ranks)
    return tuple(each + (rank < more) for rank in range(ranks))
