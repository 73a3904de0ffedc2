"""Views and shape functions, which run on local shards if each row stays on its rank."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autoddp.errors import BadInput
from autoddp.torch_internals import no_dispatch, plain_tensors
from autoddp.view.local_call import MAYBE, Const, LocalCall
from autoddp.view.rules.joining import split_blocks
from autoddp.view.rules.operands import dims_of, view_of, view_or_copy
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded
from autoddp.view.table import (
    MEMORY,
    SHAPES,
    attribute_rule,
    refusal,
    rule,
    rule_for,
    uncached_rule,
)


def _listed(rest: Any) -> list[Any]:
    """Return sizes as a list, given as a tuple or one by one."""
    return list(rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest)


def _resized(me: Any, rest: Any, sizes: list[int], placement: Any, aliases: Any = True) -> Any:
    """Return the decision for a view of these sizes, passed as in `rest`: a tuple or one by one."""
    listed = len(rest) == 1 and isinstance(rest[0], (tuple, list))
    args = [Const(tuple(sizes))] if listed else [Const(n) for n in sizes]
    return LocalCall((me, *args), {}, placement, aliases)


@rule("view", "reshape")
def view(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """View (B, T, V) as (B*T, V) and back: a rank has T times as many rows, or a T-th of them."""
    me, *rest = args
    shape = _listed(rest)
    if not is_sharded(me) or kwargs or not shape or not all(type(n) is int for n in shape):
        return NotImplemented
    count, unknown, known = me.numel(), shape.count(-1), prod(shape)
    known = -known if unknown else known
    if not count or unknown > 1 or known < 1 or count % known:
        return NotImplemented
    if unknown:
        shape[shape.index(-1)] = count // known
    placement = _regrouped(me, shape)
    if placement is None:
        return NotImplemented
    dim, sizes = placement
    shape[dim] = sizes.local
    if func.__name__ == "view":
        return _resized(me, rest, shape, placement)
    return view_or_copy(_resized(me, rest, shape, placement, MAYBE), func, args, kwargs)


def _regrouped(me: ShardedTensor, new_shape: list[int]) -> tuple[int, ShardSizes] | None:
    """Return the placement of the batch in a result of this shape, None if rows would move.

    The shard dimension may be merged with the next one, or split; or it is merged with the one
    before it, and then consists of blocks.
    """
    shape, dim, sizes = list(me.shape), me.shard_dim, me.sizes
    if prod(new_shape) != prod(shape):
        return None
    before = prod(shape[:dim])
    position, product = 0, 1
    while position < len(new_shape) and product < before:
        product *= new_shape[position]
        position += 1
    if product != before:
        return _in_blocks(me, new_shape)
    split = [sizes.blocks, sizes.total // sizes.blocks]
    if sizes.blocks > 1 and new_shape[position : position + 2] == split:
        return position + 1, sizes.of_one_block()
    # with dimensions of size 1 there are several places; prefer one with the same sizes
    candidates = [k for k in range(position, len(new_shape)) if prod(new_shape[position:k]) == 1]
    fits = [(k, s) for k in candidates if (s := _sizes_of(sizes, new_shape[k])) is not None]
    return next((fit for fit in fits if fit[1] is sizes), fits[0] if fits else None)


def _sizes_of(sizes: ShardSizes, total: int) -> ShardSizes | None:
    """Return the sizes for `total` rows after merging with the next dimension, or a split."""
    if total and total % sizes.total == 0:
        return sizes.times(total // sizes.total)
    return sizes.over(sizes.total // total) if total and sizes.total % total == 0 else None


def _in_blocks(me: ShardedTensor, new_shape: list[int]) -> tuple[int, ShardSizes] | None:
    """Return the placement in a view of (T, B, V) as (T*B, V), which consists of T blocks."""
    shape, dim = list(me.shape), me.shard_dim
    alike = zip(shape, new_shape, strict=False)
    first = next((d for d, (a, b) in enumerate(alike) if a != b), len(new_shape))
    blocks = prod(shape[first:dim])
    if first >= min(dim, len(new_shape)) or new_shape[first] % (blocks * me.sizes.total):
        return None
    return first, me.sizes.times(new_shape[first] // (blocks * me.sizes.total)).repeated(blocks)


COPIES = ("diag_embed", "repeat", "tile")  # the other functions below return views


@rule(
    *("permute", "movedim", "moveaxis", "transpose", "swapaxes", "swapdims", "t", "adjoint"),
    *("unsqueeze", "select", "narrow", "unbind", "split", "chunk", "tensor_split", "unsafe_chunk"),
    *("split_with_sizes", "diagonal", "diag_embed", "unfold", "repeat", "tile"),
)
@rule(torch.ops.aten.numpy_T, torch.ops.aten.mT)  # the attributes in Dynamo's graphs
@attribute_rule("T", "mT")
def move_dims(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Move, select or repeat other dimensions; a unique size finds the batch in the result."""
    me, *rest = args
    if not is_sharded(me) or any(isinstance(x, Tensor) for x in (*rest, *kwargs.values())):
        return NotImplemented
    numbers = [n for n in tree_leaves((rest, kwargs)) if type(n) is int]
    mark = max(me.shape) * max([1, *numbers]) + 1  # larger than any other size of the result
    sizes = [mark if dim == me.shard_dim else n for dim, n in enumerate(me.shape)]
    try:
        out = func(torch.empty(sizes, device="meta"), *rest, **kwargs)
    except (RuntimeError, IndexError):
        out = ()  # an error of the whole tensor too, or a split
    several = isinstance(out, (tuple, list))
    outs = out if several else [out]
    if not outs or any(list(x.shape).count(mark) != 1 for x in outs):
        return split_blocks(func, me, args, kwargs)
    places = [(list(x.shape).index(mark), me.sizes) for x in outs]
    out_at: Any = places if several else places[0]
    return LocalCall(args, kwargs, out_at, aliases=func.__name__ not in COPIES)


@rule("flatten", "unflatten")
def flatten(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Flatten the local rows like the whole batch; unflatten their own dimension by `reshape`."""
    me = args[0]
    if not is_sharded(me) or not me.numel():
        return NotImplemented
    shape = list(func(torch.empty(me.shape, device="meta"), *args[1:], **kwargs).shape)
    placement = _regrouped(me, shape)
    if placement is None:
        return NotImplemented
    if func.__name__ == "unflatten":
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(dim, int) or dim % me.dim() == me.shard_dim or me.sizes.blocks > 1:
            return me.reshape(shape)  # the sizes that were given are of the whole
    return view_or_copy(LocalCall(args, kwargs, placement, MAYBE), func, args, kwargs)


@rule("squeeze")
def squeeze(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Squeeze by the sizes of the whole tensor, as this rank may hold a single row."""
    me = args[0]
    if not is_sharded(me) or len(args) > 2:
        return NotImplemented
    requested = kwargs.get("dim", args[1] if len(args) > 1 else tuple(range(me.dim())))
    dims = dims_of(requested, me.dim())
    if dims is None or any(d == me.shard_dim and me.shape[d] == 1 for d in dims):
        return NotImplemented
    dropped = tuple({d for d in dims if me.shape[d] == 1})
    placement = (me.shard_dim - sum(d < me.shard_dim for d in dropped), me.sizes)
    if len(args) > 1:
        return LocalCall((me, Const(dropped)), {}, placement, aliases=True)
    if kwargs:
        return LocalCall(args, {"dim": Const(dropped)}, placement, aliases=True)
    return view_of(me, me.local.squeeze(dropped), (func, (), {}, None), *placement)


@rule("expand", "broadcast_to")
def expand(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Expand dimensions other than the batch."""
    me, *rest = args
    sizes = _listed(rest)
    if not is_sharded(me) or kwargs or not all(type(n) is int for n in sizes):
        return NotImplemented
    dim = len(sizes) - me.dim() + me.shard_dim
    if len(sizes) < me.dim() or me.sizes.total == 1 or sizes[dim] not in (-1, me.sizes.total):
        return NotImplemented
    sizes[dim] = -1
    return _resized(me, rest, sizes, (dim, me.sizes))


@uncached_rule("expand_as", "view_as", "reshape_as")
def as_other(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Expand or view by the shape of another tensor."""
    me, other = args[0], args[1] if len(args) > 1 else kwargs.get("other")
    if not isinstance(other, Tensor):
        return NotImplemented
    return getattr(me, func.__name__.removesuffix("_as"))(other.shape)


@uncached_rule(*SHAPES)
def reshape_in_place(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call the function without the underscore, and give the wrapper the new shape."""
    me, name = args[0], func.__name__
    if not is_sharded(me):
        return NotImplemented
    if name == "t_" and me.dim() < 2:
        return me
    if me.local.requires_grad and not torch.is_grad_enabled():
        raise BadInput(refusal(me.shape, name))  # torch keeps the graph of the former shape
    if me.local.requires_grad and me.local.is_leaf:
        func(me.local, *args[1:], **kwargs)  # torch raises its own error
    view = getattr(Tensor, name[:-1])
    known: Any = rule_for(view)
    out = known.decide(view, args, kwargs)  # even if a rank has no rows
    if isinstance(out, LocalCall):
        out = out.run(view, args, kwargs)
    elif out is NotImplemented:
        out = view(*args, **kwargs)  # it gathers, or torch raises its own error
    if not is_sharded(out):
        raise BadInput(refusal(me.shape, name))
    with torch.no_grad(), plain_tensors(), no_dispatch():
        func(*args, **kwargs)
    me._local, me.spec, me.base, me.path = out._local, out.spec, out.base, out.path
    me._whole = None  # gathered in the old shape
    return me


@uncached_rule(*MEMORY)
def move_in_place(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Raise for a change of a tensor's memory that shards cannot represent."""
    me, *rest = args
    if not is_sharded(me):
        return NotImplemented
    sizes = rest[0].shape if rest and isinstance(rest[0], Tensor) else _listed(rest)
    if func.__name__ != "as_strided_" and tuple(sizes) == me.shape:
        return me
    raise BadInput(refusal(me.shape, func.__name__))
