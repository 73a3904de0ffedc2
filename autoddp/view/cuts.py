"""The cuts of a batch: the rows of it that each rank holds."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from autoddp.view.state import View


class Cuts:
    """The numbers of rows that ranks hold, contiguous, in rank order; one object for each cut.

    Time before batch, flattened, is a batch that comes in turns: in each, a rank holds its rows.

    Attributes:
        sizes: Rows of every rank, in each turn.
        turns: How many turns there are: 1 but for what was flattened so.
        total: Rows of the batch.
        start: The first row of this rank, in each turn.
        mine: Rows of this rank, in all turns.
    """

    __slots__ = ("even", "largest", "mine", "sizes", "smallest", "start", "total", "turns", "view")

    def __init__(self, view: View, sizes: tuple[int, ...], turns: int = 1) -> None:
        rank = view.group.rank
        self.view, self.sizes, self.turns = view, sizes, turns
        self.total, self.start, self.mine = (
            sum(sizes) * turns,
            sum(sizes[:rank]),
            sizes[rank] * turns,
        )
        self.largest, self.smallest = max(sizes) * turns, min(sizes) * turns
        self.even = self.largest == self.smallest

    def times(self, factor: int) -> Cuts:
        """Return the cuts of a batch in which each row became `factor` rows."""
        return (
            self
            if factor == 1
            else self.view.cuts(tuple(s * factor for s in self.sizes), self.turns)
        )

    def over(self, factor: int) -> Cuts | None:
        """Undo `times`, if every rank's rows come in groups of `factor`; else return None."""
        if factor == 1:
            return self
        if factor < 1 or any(s % factor for s in self.sizes):
            return None
        return self.view.cuts(tuple(s // factor for s in self.sizes), self.turns)

    def in_turns(self, turns: int) -> Cuts:
        """Return the cuts of `turns` such batches, one behind the other."""
        return self.view.cuts(self.sizes, self.turns * turns)

    def of_a_turn(self) -> Cuts:
        """Undo `in_turns`, all turns at once."""
        return self.view.cuts(self.sizes)

    def take(self, whole: Tensor, dim: int) -> Tensor:
        """Cut this rank's rows out of a whole tensor: a view of it, but for several turns."""
        if self.turns == 1:
            return whole.narrow(dim, self.start, self.mine)
        apart = whole.unflatten(dim, (self.turns, self.total // self.turns))
        return apart.narrow(dim + 1, self.start, self.mine // self.turns).flatten(dim, dim + 1)

    def __repr__(self) -> str:
        return f"Cuts{self.sizes}" + (f" in {self.turns} turns" if self.turns > 1 else "")


@lru_cache(64)
def even_sizes(total: int, ranks: int) -> tuple[int, ...]:
    """Cut `total` rows over `ranks` into contiguous sizes that differ by one at most."""
    each, more = divmod(total, ranks)
    return tuple(each + (rank < more) for rank in range(ranks))
