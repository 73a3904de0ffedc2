"""The sizes of the shards of a batch, and the spec of a sharded tensor."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from autoddp.view.state import View


MAX_SPECS = 4096


class ShardSizes:
    """The number of rows that each rank holds, contiguous and in rank order.

    Equal sizes are one object, so that `is` compares them. A batch that is flattened together with
    a preceding dimension, (T, B) to (T*B), consists of T blocks; a rank holds its rows of each
    block (DTensor's strided shard).

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
        """Return the sizes of a batch in which `factor` rows replace each row."""
        if factor == 1:
            return self
        return self.view.shard_sizes(tuple(s * factor for s in self.per_rank), self.blocks)

    def over(self, factor: int) -> ShardSizes | None:
        """Undo `times`; None if the rows of a rank are no multiple of `factor`."""
        if factor == 1:
            return self
        if factor < 1 or any(s % factor for s in self.per_rank):
            return None
        return self.view.shard_sizes(tuple(s // factor for s in self.per_rank), self.blocks)

    def repeated(self, blocks: int) -> ShardSizes:
        """Return the sizes of `blocks` such batches, concatenated."""
        return self.view.shard_sizes(self.per_rank, self.blocks * blocks)

    def of_one_block(self) -> ShardSizes:
        """Return the sizes of one block."""
        return self.view.shard_sizes(self.per_rank)

    def shard(self, whole: Tensor, dim: int) -> Tensor:
        """Return this rank's rows of a whole tensor: a view, or a copy if it has blocks."""
        if self.blocks == 1:
            return whole.narrow(dim, self.offset, self.local)
        split = whole.unflatten(dim, (self.blocks, self.total // self.blocks))
        return split.narrow(dim + 1, self.offset, self.local // self.blocks).flatten(dim, dim + 1)

    def copy(self, whole: Tensor, dim: int) -> Tensor:
        """Return a copy of this rank's rows, in the layout that a copy of the whole has."""
        rows = self.shard(whole, dim)
        if self.local != 1:
            return rows.clone()
        dense = torch.empty_like(whole, device="meta").stride()
        copy = torch.empty_strided(
            rows.shape, local_strides(dense, dim, self), dtype=rows.dtype, device=rows.device
        )
        return copy.copy_(rows)

    def spec(self, local_shape: tuple[int, ...], dim: int) -> Spec:
        """Return the `Spec` of a tensor with this local shape; equal arguments give one object."""
        key = (dim, *local_shape)
        spec = self.specs.get(key)
        if spec is None:
            if len(self.specs) >= MAX_SPECS:
                self.specs.clear()
            spec = self.specs[key] = Spec(self, local_shape, dim)
        return spec


class Spec:
    """Shape and placement of a sharded tensor; equal specs are one object, compared by `is`.

    Attributes:
        sizes: The number of rows on each rank.
        dim: The shard dimension.
        shape: The shape of the whole tensor.
        local_shape: The shape of this rank's shard.
        view: The view of this rank.
        strides: The strides of the whole tensor, by local strides; None for contiguous ones.
    """

    __slots__ = ("dim", "local_shape", "shape", "sizes", "strides", "view")

    def __init__(self, sizes: ShardSizes, local_shape: tuple[int, ...], dim: int) -> None:
        shape = list(local_shape)
        assert shape[dim] == sizes.local, f"{shape} along {dim} is not {sizes.per_rank}"
        shape[dim] = sizes.total
        self.local_shape = local_shape
        self.sizes, self.dim, self.shape, self.view = sizes, dim, torch.Size(shape), sizes.view
        self.strides: dict[tuple[int, ...], tuple[int, ...] | None] = {}

    def strides_for(self, local: Tensor) -> tuple[int, ...] | None:
        """Return the strides of the whole tensor for the layout of `local`; None if contiguous."""
        result = whole_strides(local.shape, local.stride(), self.dim, self.sizes)
        contiguous = torch.empty(self.shape, device="meta").stride()
        self.strides[local.stride()] = None if result == contiguous else result
        return self.strides[local.stride()]


def whole_strides(
    shape: Any, strides: tuple[int, ...], dim: int, sizes: ShardSizes
) -> tuple[int, ...]:
    """Return the strides of the whole tensor for those of a shard along `dim`.

    The strides of dimensions that lie outside of the rows in memory grow with the number of rows.
    """
    rows, row = max(shape[dim], 1), strides[dim]
    if rows == 1:  # as wide as what lies inside of it: dimensions of smaller strides
        inside = [k for k, s in enumerate(strides) if s < row and shape[k] > 1]
        if any(strides[k] * (shape[k] - 1) >= row for k in inside):
            row = max(strides[k] * shape[k] for k in inside)
    block, whole_block = rows * row, sizes.total * row
    return tuple(
        row if k == dim else s if not block else s // block * whole_block + s % block
        for k, s in enumerate(strides)
    )


def local_strides(strides: tuple[int, ...], dim: int, sizes: ShardSizes) -> tuple[int, ...]:
    """Return the strides of a dense shard along `dim`, for those of the whole tensor."""
    row = strides[dim]
    if not row:
        return strides
    block, whole_block = max(sizes.local, 1) * row, sizes.total * row
    return tuple(
        row if k == dim else s // whole_block * block + s % whole_block
        for k, s in enumerate(strides)
    )


@lru_cache(64)
def even_sizes(total: int, ranks: int) -> tuple[int, ...]:
    """Divide `total` rows among `ranks` into contiguous sizes that differ by one at most."""
    each, extra = divmod(total, ranks)
    return tuple(each + (rank < extra) for rank in range(ranks))
