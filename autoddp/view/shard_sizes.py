"""How many rows of a batch each rank holds, and the placement of a sharded tensor."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from autoddp.view.state import View


MAX_SPECS = 4096  # specs that are kept for each tuple of sizes


class ShardSizes:
    """The number of rows that each rank holds, contiguous and in rank order.

    There is one object for each tuple of sizes, so that `is` compares them. A batch that was
    flattened behind another dimension, (T, B) to (T*B), consists of T blocks: in each of them a
    rank holds its rows (DTensor calls this a strided shard).

    Attributes:
        per_rank: Rows of every rank, in each block.
        blocks: Number of blocks, 1 for an ordinary batch.
        total: Rows of the whole batch.
        offset: First row of this rank, in each block.
        local: Rows of this rank, in all blocks.
        largest: The most rows that a rank holds.
        smallest: The fewest rows that a rank holds.
        even: Whether all ranks hold the same number.
    """

    __slots__ = (
        *("blocks", "even", "largest", "local", "offset", "per_rank"),
        *("smallest", "specs", "total", "view"),
    )

    def __init__(self, view: View, per_rank: tuple[int, ...], blocks: int = 1) -> None:
        rank = view.group.rank
        self.view, self.per_rank, self.blocks = view, per_rank, blocks
        self.total = sum(per_rank) * blocks
        self.offset = sum(per_rank[:rank])
        self.local = per_rank[rank] * blocks
        self.largest, self.smallest = max(per_rank) * blocks, min(per_rank) * blocks
        self.even = self.largest == self.smallest
        self.specs: dict[tuple[int, ...], Spec] = {}

    def times(self, factor: int) -> ShardSizes:
        """Return the sizes of a batch in which each row became `factor` rows."""
        if factor == 1:
            return self
        return self.view.shard_sizes(tuple(s * factor for s in self.per_rank), self.blocks)

    def over(self, factor: int) -> ShardSizes | None:
        """Undo `times`, or return None if a rank's rows do not come in groups of `factor`."""
        if factor == 1:
            return self
        if factor < 1 or any(s % factor for s in self.per_rank):
            return None
        return self.view.shard_sizes(tuple(s // factor for s in self.per_rank), self.blocks)

    def repeated(self, blocks: int) -> ShardSizes:
        """Return the sizes of `blocks` such batches, one behind the other."""
        return self.view.shard_sizes(self.per_rank, self.blocks * blocks)

    def of_one_block(self) -> ShardSizes:
        """Return the sizes of one block."""
        return self.view.shard_sizes(self.per_rank)

    def shard(self, whole: Tensor, dim: int) -> Tensor:
        """Take this rank's rows of a whole tensor: a view of it, but for several blocks."""
        if self.blocks == 1:
            return whole.narrow(dim, self.offset, self.local)
        apart = whole.unflatten(dim, (self.blocks, self.total // self.blocks))
        return apart.narrow(dim + 1, self.offset, self.local // self.blocks).flatten(dim, dim + 1)

    def spec(self, local_shape: tuple[int, ...], dim: int) -> Spec:
        """Return the one `Spec` of a tensor whose local part has this shape."""
        key = (dim, *local_shape)
        found = self.specs.get(key)
        if found is None:
            if len(self.specs) >= MAX_SPECS:
                self.specs.clear()  # what is kept of an old one is only found again more slowly
            found = self.specs[key] = Spec(self, local_shape, dim)
        return found


class Spec:
    """Shape and placement of a sharded tensor; one object for each, so that `is` compares them.

    Attributes:
        sizes: How many rows each rank holds.
        dim: The dimension along which the tensor is sharded.
        shape: The shape of the whole tensor.
        view: The view of this rank.
        strides: The strides of the whole, by those of the local part; None if contiguous.
    """

    __slots__ = ("dim", "shape", "sizes", "strides", "view")

    def __init__(self, sizes: ShardSizes, local_shape: tuple[int, ...], dim: int) -> None:
        shape = list(local_shape)
        assert shape[dim] == sizes.local, f"{shape} along {dim} is not {sizes.per_rank}"
        shape[dim] = sizes.total
        self.sizes, self.dim, self.shape, self.view = sizes, dim, torch.Size(shape), sizes.view
        self.strides: dict[tuple[int, ...], tuple[int, ...] | None] = {}

    def strides_for(self, local: Tensor) -> tuple[int, ...] | None:
        """Return the strides of a whole that is laid out as `local`; None for a contiguous one.

        By strides alone: of a rank with a single row `is_contiguous` says nothing.
        """
        mine = local.stride()
        shape, strides, step = self.shape, [0] * len(mine), 1
        for dim in sorted(range(len(mine)), key=lambda k: (mine[k], -k)):
            if mine[dim] == 0 and shape[dim] > 1:
                continue  # expanded
            strides[dim] = step
            step *= max(shape[dim], 1)
        found = tuple(strides)
        contiguous = torch.empty(shape, device="meta").stride()
        self.strides[mine] = None if found == contiguous else found
        return self.strides[mine]


@lru_cache(64)
def even_sizes(total: int, ranks: int) -> tuple[int, ...]:
    """Divide `total` rows among `ranks` into contiguous sizes that differ by one at most."""
    each, extra = divmod(total, ranks)
    return tuple(each + (rank < extra) for rank in range(ranks))
