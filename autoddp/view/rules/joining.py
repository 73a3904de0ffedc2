"""Concatenation and stacking; concatenated batches, such as two views of each image, form blocks.

A rank holds its rows of each block. A model runs on all blocks, and its output is split into them
again, without communication.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autoddp.view.local_call import LocalCall
from autoddp.view.rules.operands import MISALIGNED, arguments, dim_of, view_of
from autoddp.view.rules.rows import named_dims, row_operand, rowwise, with_arguments
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded
from autoddp.view.table import rule


@rule("cat", "concat", "concatenate", "stack", "hstack", "vstack")
def join(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Join sharded tensors of equal sizes, and rows of replicated ones.

    Along the shard dimension all must be sharded.
    """
    bound = arguments(func, args, kwargs)
    tensors, name = bound.get("tensors"), func.__name__
    if not isinstance(tensors, (tuple, list)) or bound.get("out") is not None:
        return NotImplemented
    first = next((x for x in tensors if is_sharded(x)), None)
    if first is None or not all(isinstance(x, Tensor) for x in tensors):
        return NotImplemented
    new = name == "stack"
    given_dim = {"hstack": 1, "vstack": 0}.get(name, bound.get("dim"))
    dim = dim_of(given_dim, first.dim() + new)
    if dim is None or ("dim" not in bound and first.dim() < 2):
        return NotImplemented
    if not new and dim == first.shard_dim:
        return _join_rows(args, kwargs, tensors, first)
    # `cat` ignores tensors of shape (0,)
    items = [x if x.shape == (0,) and not new else row_operand(x, first) for x in tensors]
    if any(x is MISALIGNED for x in items):
        return NotImplemented
    at = first.shard_dim + (new and dim <= first.shard_dim)
    args, kwargs = with_arguments(bound, args, kwargs, {"tensors": type(tensors)(items)})
    return LocalCall(args, kwargs, (at, first.sizes))


def _join_rows(args: Any, kwargs: dict[str, Any], tensors: Any, first: ShardedTensor) -> Any:
    """Concatenate batches of equal sizes along the shard dimension, into blocks."""
    joined = [x for x in tensors if is_sharded(x) or x.shape != (0,)]
    if not all(is_sharded(x) and x.dim() == first.dim() for x in joined):
        return NotImplemented
    if len({x.dtype for x in tensors}) > 1 or any(x.shard_dim != first.shard_dim for x in joined):
        return NotImplemented
    if any(x.sizes.per_rank != first.sizes.per_rank for x in joined):
        return NotImplemented
    blocks = sum(x.sizes.blocks for x in joined)
    sizes = first.sizes.view.shard_sizes(first.sizes.per_rank, blocks)
    return LocalCall(args, kwargs, (first.shard_dim, sizes))


def split_blocks(func: Any, me: ShardedTensor, args: Any, kwargs: dict[str, Any]) -> Any:
    """Split a batch between its blocks, by `chunk` or `split`."""
    bound = arguments(func, args, kwargs)
    if func.__name__ not in ("chunk", "split") or len(bound) != 3:
        return NotImplemented
    _, sections, dim = bound.values()
    total = me.sizes.total
    if dim_of(dim, me.dim()) != me.shard_dim:
        return NotImplemented
    if type(sections) is int and sections > 0 and total % sections == 0:
        count = sections if func.__name__ == "chunk" else total // sections
        sections = [total // count] * count
    each = total // me.sizes.blocks
    if not isinstance(sections, (tuple, list)) or len(sections) < 2 or sum(sections) != total:
        return NotImplemented
    if any(type(n) is not int or n < 1 or n % each for n in sections):
        return NotImplemented
    rows = me.sizes.local // me.sizes.blocks
    parts = me.local.split([n // each * rows for n in sections], me.shard_dim)
    splits = [me.sizes.view.shard_sizes(me.sizes.per_rank, n // each) for n in sections]
    pairs = enumerate(zip(parts, splits, strict=True))
    return tuple(
        view_of(me, part, (func, args[1:], kwargs, k), me.shard_dim, c) for k, (part, c) in pairs
    )


@rule("repeat_interleave")
def repeat_interleave(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Repeat the elements of each row, or repeat all rows equally often."""
    bound = arguments(func, args, kwargs)
    me, times = bound.get("input"), bound.get("repeats")
    if not is_sharded(me) or type(times) is not int or times < 1:
        return NotImplemented
    if dim_of(bound.get("dim"), me.dim()) != me.shard_dim:
        return rowwise(named_dims, False, func, args, kwargs)
    if me.sizes.blocks > 1:
        return NotImplemented
    return LocalCall(args, kwargs, (me.shard_dim, me.sizes.times(times)))
