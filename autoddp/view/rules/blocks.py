"""Batches one behind the other, as the views of an image are: each is a block of one batch.

A rank holds its rows of each block. So a model is called with all of them, what it gives is taken
apart again, and no rank needs another's rows.
"""

from __future__ import annotations

from typing import Any

from autoddp.view.local_call import LocalCall
from autoddp.view.rules.operands import related
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded


def one_behind_the_other(
    func: Any, args: Any, kwargs: dict[str, Any], tensors: Any, first: ShardedTensor
) -> Any:
    """Join batches of equal sizes along the batch: what comes of it consists of blocks."""
    joined = [x for x in tensors if is_sharded(x) or x.shape != (0,)]
    if not all(is_sharded(x) and x.dim() == first.dim() for x in joined):
        return NotImplemented
    if len({x.dtype for x in tensors}) > 1 or not min(first.sizes.per_rank):
        return NotImplemented
    alike = (x.sizes.per_rank == first.sizes.per_rank for x in joined)
    if not all(alike) or any(x.shard_dim != first.shard_dim for x in joined):
        return NotImplemented
    blocks = sum(x.sizes.blocks for x in joined)
    sizes = first.sizes.view.shard_sizes(first.sizes.per_rank, blocks)
    return LocalCall(args, kwargs, (first.shard_dim, sizes))


def blocks_apart(me: ShardedTensor, name: str, asked: Any) -> Any:
    """Take a batch that consists of blocks apart between them, by `chunk` or `split`."""
    sizes = _sizes(name, asked, me.sizes.total)
    each = me.sizes.total // me.sizes.blocks
    if len(sizes) < 2 or sum(sizes) != me.sizes.total or any(n < 1 or n % each for n in sizes):
        return NotImplemented
    here = me.sizes.local // me.sizes.blocks
    parts = me.local.split([n // each * here for n in sizes], me.shard_dim)
    views = [me.sizes.view.shard_sizes(me.sizes.per_rank, n // each) for n in sizes]
    return tuple(related(me, part, None, c) for part, c in zip(parts, views, strict=True))


def _sizes(name: str, asked: Any, total: int) -> list[int]:
    """Return the sizes of the parts that are asked for; none where that is not certain."""
    if type(asked) is int and asked > 0 and total % asked == 0:
        if name == "chunk":
            return [total // asked] * asked
        return [asked] * (total // asked) if name == "split" else []
    listed = isinstance(asked, (tuple, list)) and all(type(n) is int for n in asked)
    return [*asked] if name == "split" and listed else []
