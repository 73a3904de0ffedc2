"""Slicing, joining and moving within rows, on local parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoddp.view.local_call import LocalCall, LocalRows
from autoddp.view.rules.blocks import blocks_apart, one_behind_the_other
from autoddp.view.rules.operands import dim_of, dims_of
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded
from autoddp.view.table import rule


@rule("roll", "flip", "fliplr", "flipud", "rot90")
def moved(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Roll or flip along other dimensions; without one all elements would roll."""
    me, *rest = args
    name = func.__name__
    if not is_sharded(me) or me.dim() < 2:
        return NotImplemented
    where = {"roll": 1, "rot90": 1}.get(name, 0)
    given = kwargs.get("dims", rest[where] if len(rest) > where else None)
    if name == "flip" and len(rest) > 1:
        given = rest
    if name == "rot90" and given is None:
        given = (0, 1)
    fixed = {"fliplr": (1,), "flipud": (0,)}
    dims = dims_of(fixed.get(name, given), me.dim())
    if dims is None or me.shard_dim in dims:
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


SPLITS = {"chunk": 2, "split": 2, "tensor_split": 2, "split_with_sizes": 2, "unsafe_chunk": 2}
TAKES = {"select": 1, "narrow": 1, "unbind": 1, "index_select": 1}


@rule(*SPLITS, *TAKES)
def along_others(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Take parts of every row, along another dimension."""
    me, *rest = args
    name = func.__name__
    where = SPLITS.get(name, 1)
    default = 0 if name in SPLITS or name == "unbind" else None
    value = kwargs.get("dim", args[where] if len(args) > where else default)
    if not is_sharded(me) or any(is_sharded(x) for x in (*rest, *kwargs.values())):
        return NotImplemented
    dim = dim_of(value, me.dim())
    if dim is None:
        return NotImplemented
    if dim == me.shard_dim:
        return blocks_apart(me, name, rest[0] if rest else kwargs.get("chunks"))
    gone = name in ("select", "unbind") and dim < me.shard_dim
    return LocalCall(args, kwargs, (me.shard_dim - gone, me.sizes), aliases=name != "index_select")


@rule("hsplit", "vsplit", "dsplit")
def split_named(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Split along the dimension that the function's name says."""
    me = args[0]
    if not is_sharded(me) or any(isinstance(x, Tensor) for x in (*args[1:], *kwargs.values())):
        return NotImplemented
    dim = {"hsplit": int(me.dim() > 1), "vsplit": 0, "dsplit": 2}[func.__name__]
    if dim == me.shard_dim or dim >= me.dim():
        return NotImplemented
    return LocalCall(args, kwargs, me.placement, aliases=True)


@rule("diagonal", "diag_embed", "unfold")
def two_others(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Take diagonals, or windows, along other dimensions: the batch is found by its size."""
    me = args[0]
    if not is_sharded(me):
        return NotImplemented
    sizes = [3] * me.dim() if func.__name__ != "unfold" else [*me.shape]
    mark = 1_000_003  # a size that nothing else has
    sizes[me.shard_dim] = mark
    shape = list(func(torch.empty(sizes, device="meta"), *args[1:], **kwargs).shape)
    if shape.count(mark) != 1:
        return NotImplemented
    return LocalCall(args, kwargs, (shape.index(mark), me.sizes), func.__name__ != "diag_embed")


@rule("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack")
def join(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Join sharded tensors of equal sizes, and replicated ones of as many rows.

    Along the batch only sharded ones are joined.
    """
    tensors = kwargs.get("tensors", args[0] if args else ())
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    name = func.__name__
    if not isinstance(tensors, (tuple, list)) or kwargs.get("out") is not None:
        return NotImplemented
    first = next((x for x in tensors if is_sharded(x)), None)
    if first is None or not all(isinstance(x, Tensor) for x in tensors):
        return NotImplemented
    if name in ("hstack", "vstack", "dstack", "column_stack"):
        dim = {"vstack": 0, "dstack": 2}.get(name, 1)
        if first.dim() < (3 if name == "dstack" else 2):
            return NotImplemented
    new = name == "stack"
    along = dim_of(dim, first.dim() + new)
    if along is None:
        return NotImplemented
    if not new and along == first.shard_dim:
        return one_behind_the_other(func, args, kwargs, tensors, first)
    # `cat` passes over tensors of shape (0,)
    items = [x if x.shape == (0,) and not new else _row_of(x, first) for x in tensors]
    if any(x is None for x in items):
        return NotImplemented
    at = first.shard_dim + (new and along <= first.shard_dim)
    made = type(tensors)(items)
    if "tensors" in kwargs:
        return LocalCall(args, {**kwargs, "tensors": made}, (at, first.sizes))
    return LocalCall((made, *args[1:]), kwargs, (at, first.sizes))


def _row_of(x: Tensor, first: ShardedTensor) -> Any:
    """Return how a tensor is joined with `first`, None if it is not certain."""
    if x.dim() != first.dim() or x.layout is not torch.strided:
        return None
    if is_sharded(x):
        return x if x.placement == first.placement else None
    return LocalRows(first.shard_dim) if x.shape[first.shard_dim] == first.sizes.total else None


@rule("repeat_interleave")
def repeat_interleave(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Repeat the elements of each row, or each row, an equal number of times."""
    me, *rest = args
    times = kwargs.get("repeats", rest[0] if rest else None)
    dim = kwargs.get("dim", rest[1] if len(rest) > 1 else None)
    if not is_sharded(me) or type(times) is not int or times < 1:
        return NotImplemented
    along = dim_of(dim, me.dim())
    if along is None or (along == me.shard_dim and me.sizes.blocks > 1):
        return NotImplemented
    sizes = me.sizes.times(times) if along == me.shard_dim else me.sizes
    return LocalCall(args, kwargs, (me.shard_dim, sizes))


@rule("tril", "triu")
def matrices(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Keep a triangle of each row's matrix."""
    me = args[0]
    if not is_sharded(me) or me.shard_dim >= me.dim() - 2 or kwargs.get("out") is not None:
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


@rule("pad")
def pad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Pad the last dimensions."""
    me = args[0]
    widths = kwargs.get("pad", args[1] if len(args) > 1 else None)
    if not is_sharded(me) or not isinstance(widths, (tuple, list)):
        return NotImplemented
    padded = len(widths) // 2
    while padded and widths[2 * padded - 2 : 2 * padded] in ([0, 0], (0, 0)):
        padded -= 1  # a width of zero pads nothing
    mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
    if mode != "constant" and (me.shard_dim != 0 or me.dim() < 3 or len(widths) // 2 >= me.dim()):
        return NotImplemented
    if me.shard_dim >= me.dim() - padded:
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)
