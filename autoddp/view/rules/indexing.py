"""Reading and writing by an index that takes all rows of the shard dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoddp.comm.accelerator import CPU
from autoddp.view.local_call import GATHER_ONCE, Const, LocalCall, LocalRows
from autoddp.view.rules.operands import MISALIGNED, aligned, local_operand
from autoddp.view.sharded_tensor import Partial, ShardedTensor, is_sharded
from autoddp.view.table import rule

MARK = 1_000_003  # a size that marks the shard dimension
INDICES = (torch.int64, torch.int32, torch.bool)
# local index, shard dimension of the result, number of its dimensions
LocalIndex = tuple[tuple[Any, ...], int, int]


@rule("__getitem__")
def getitem(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Read by an index that takes all rows: `x[:, 0]`, `x[..., 1:]`, `x[:, None]`."""
    me, index = args
    tensors = _holds_tensors(index)  # the result depends on their values: nothing is cached
    local_index = _local_index(me, index) if is_sharded(me) else None
    if local_index is None:
        return GATHER_ONCE if tensors else NotImplemented
    items, dim, _ = local_index
    if tensors:
        return LocalCall((me, Const(items)), {}, (dim, me.sizes)).run(func, args, kwargs)
    return LocalCall((me, Const(items)), {}, (dim, me.sizes), aliases=True)


@rule("__setitem__")
def setitem(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Write a number, or a tensor with the same rows: `x[:, 0] = y[:, 1]`, `x[mask] = 1`."""
    me, index, value = args
    tensors = _holds_tensors(index)
    if _is_mask(index, me) and _is_number(value):
        return LocalCall(args, {}, None, in_place=True).run(func, args, kwargs)
    local_index = _local_index(me, index) if is_sharded(me) else None
    if local_index is None or isinstance(value, Partial):
        return GATHER_ONCE if tensors else NotImplemented
    items, dim, ndim = local_index
    if isinstance(value, Tensor):
        value = aligned(value, me.sizes, dim, ndim) if value.dim() <= ndim else MISALIGNED
    if value is MISALIGNED or not isinstance(value, (bool, int, float, Tensor, LocalRows)):
        return GATHER_ONCE if tensors else NotImplemented
    call = LocalCall((me, Const(items), value), {}, None, in_place=True)
    return call.run(func, args, kwargs) if tensors else call


def _holds_tensors(index: Any) -> bool:
    """Return whether an index is or contains a tensor."""
    items = index if isinstance(index, tuple) else (index,)
    return any(isinstance(x, Tensor) for x in items)


def _is_mask(index: Any, me: Any) -> bool:
    """Return whether an index is a mask with the rows of the batch."""
    if not is_sharded(me) or not is_sharded(index) or index.dtype is not torch.bool:
        return False
    return index.placement == me.placement and index.shape == me.shape[: index.dim()]


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, as one or in a tensor."""
    return isinstance(value, (bool, int, float)) or (type(value) is Tensor and not value.dim())


def _local_index(me: ShardedTensor, index: Any) -> LocalIndex | None:
    """Return the local form of an index that takes all rows in order; None for any other.

    The item of the shard dimension is `:`, or `arange(B)` with other indices for each row.
    """
    expanded = _expanded(me, index)
    if expanded is None:
        return None
    items, position = expanded
    tensors = [x for x in items if isinstance(x, Tensor)]
    if is_sharded(items[position]) or any(x.dtype not in INDICES for x in tensors):
        return None
    ndim = max((x.dim() if x.dtype is not torch.bool else 1 for x in tensors), default=0)
    dim = None
    if isinstance(items[position], Tensor):
        dim = _arange_dim(items[position], me, ndim)
        if dim is None or any(x.dtype is torch.bool for x in tensors):
            return None
    elif items[position] != slice(None) or any(map(is_sharded, tensors)):
        return None
    local, marks = [], []
    for item in items:
        local_item = _local_item(item, me, dim, ndim, rows=item is items[position])
        if local_item is None:
            return None
        local.append(local_item[0])
        marks += local_item[1]
    sizes = [*me.shape]
    if dim is None:
        sizes[me.shard_dim] = MARK
    try:
        shape = torch.empty(sizes, device="meta")[tuple(marks)].shape
    except IndexError:
        return None  # the gathered tensor raises the error
    return (tuple(local), shape.index(MARK), len(shape)) if shape.count(MARK) == 1 else None


def _expanded(me: ShardedTensor, index: Any) -> tuple[list[Any], int] | None:
    """Return the index with a slice for each omitted dimension, and the rows' position."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not all(i is None or i is Ellipsis or type(i) in (int, slice) or isinstance(i, Tensor)
               for i in items):  # fmt: skip
        return None
    consumed = [_consumed(i) for i in items]
    ellipses = [k for k, i in enumerate(items) if i is Ellipsis]
    if (
        sum(consumed) > me.dim()
        or len(ellipses) > 1
        or 0 in [i.dim() for i in items if isinstance(i, Tensor)]
    ):
        return None
    at = ellipses[0] if ellipses else len(items)
    items[at : at + 1] = [slice(None)] * (me.dim() - sum(consumed))
    count = 0
    for k, item in enumerate(items):
        count += _consumed(item)
        if count > me.shard_dim:
            items[k] = _simplified(item, me.shape[me.shard_dim])
            return items, k
    return None


def _simplified(item: Any, size: int) -> Any:
    """Return `:` for a slice that takes all of a dimension, such as `x[:batch_size]`."""
    if type(item) is slice and item.indices(size) == (0, size, 1):
        return slice(None)
    return item


def _consumed(item: Any) -> int:
    """Return the number of dimensions that an item of an index consumes."""
    if isinstance(item, Tensor):
        return item.dim() if item.dtype is torch.bool else 1
    return int(item is not None and item is not Ellipsis)


def _arange_dim(x: Tensor, me: ShardedTensor, ndim: int) -> int | None:
    """Return the dimension, of `ndim`, along which `x` is `arange(B)`; None if it is not."""
    total = me.sizes.total
    if type(x) is not Tensor or x.numel() != total or total < 2 or max(x.shape) != total:
        return None
    if me.sizes.blocks > 1 or not torch.equal(
        x.flatten().long().cpu(), torch.arange(total, device=CPU)
    ):
        return None
    return ndim - x.dim() + x.shape.index(total)


def _local_item(
    item: Any, me: ShardedTensor, dim: int | None, ndim: int, rows: bool
) -> tuple[Any, list[Any]] | None:
    """Return the local form of an item, and a meta item that marks the shard dimension."""
    if not isinstance(item, Tensor):
        return item, [item]
    if item.dtype is torch.bool:
        return item, [torch.zeros(1, dtype=torch.int64, device="meta").expand(7)] * item.dim()
    shape = list(item.shape)
    if dim is not None:
        from_end = ndim - dim
        item = local_operand(item, me.sizes, dim, ndim)
        if item is MISALIGNED:
            return None
        if len(shape) >= from_end and shape[-from_end] == me.sizes.total:
            shape[-from_end] = MARK
        item = item - me.sizes.offset if rows else item
    return item, [torch.zeros(1, dtype=torch.int64, device="meta").expand(shape)]
