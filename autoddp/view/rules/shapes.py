"""Views and shape functions; they run on local shards if each row stays on its rank."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autoddp.errors import BadInput
from autoddp.torch_internals import no_dispatch, plain_tensors
from autoddp.view.local_call import Const, LocalCall
from autoddp.view.rules.joining import split_blocks
from autoddp.view.rules.operands import alias_of, dims_of
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded
from autoddp.view.table import attribute_rule, refusal, rule, uncached_rule


def _listed(rest: Any) -> list[Any]:
    """Return sizes as a list, given as a tuple or one by one."""
    return list(rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest)


def _resized(me: Any, rest: Any, sizes: list[int], place: Any) -> Any:
    """Return the decision for a view of these sizes, in the form in which they were given."""
    listed = len(rest) == 1 and isinstance(rest[0], (tuple, list))
    given = [Const(tuple(sizes))] if listed else [Const(n) for n in sizes]
    return LocalCall((me, *given), {}, place, aliases=True)


@rule("view", "reshape")
def view(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """View (B, T, V) as (B*T, V) and back: a rank has T times as many rows or as few."""
    me, *rest = args
    want = _listed(rest)
    if not is_sharded(me) or kwargs or not want or not all(type(n) is int for n in want):
        return NotImplemented
    count, unknown, known = me.numel(), want.count(-1), prod(want)
    known = -known if unknown else known
    if not count or unknown > 1 or known < 1 or count % known:
        return NotImplemented
    if unknown:
        want[want.index(-1)] = count // known
    found = _regrouped(me, want)
    if found is None:
        return NotImplemented
    _check_view(func, me, want)
    dim, sizes = found
    want[dim] = sizes.local
    return _resized(me, rest, want, found)


def _regrouped(me: ShardedTensor, want: list[int]) -> tuple[int, ShardSizes] | None:
    """Return the placement of the batch in a result of this shape, None if rows would move.

    The batch keeps its dimension, merged with what follows it or split from that; or it is merged
    with what precedes it, and consists of blocks.
    """
    shape, dim, sizes = list(me.shape), me.shard_dim, me.sizes
    if prod(want) != prod(shape):
        return None
    before = prod(shape[:dim])
    place, seen = 0, 1
    while place < len(want) and seen < before:
        seen *= want[place]
        place += 1
    if seen != before:
        return _in_blocks(me, want)
    if sizes.blocks > 1 and want[place : place + 2] == [
        sizes.blocks,
        sizes.total // sizes.blocks,
    ]:
        return place + 1, sizes.of_one_block()
    # with dimensions of size 1 there are several places; prefer one with the same sizes
    places = [k for k in range(place, len(want)) if prod(want[place:k]) == 1]
    fits = [(k, s) for k in places if (s := _sizes_of(sizes, want[k])) is not None]
    return next((fit for fit in fits if fit[1] is sizes), fits[0] if fits else None)


def _sizes_of(sizes: ShardSizes, total: int) -> ShardSizes | None:
    """Return the sizes for `total` rows, each merged with what follows it or split from it."""
    if total and total % sizes.total == 0:
        return sizes.times(total // sizes.total)
    return sizes.over(sizes.total // total) if total and sizes.total % total == 0 else None


def _in_blocks(me: ShardedTensor, want: list[int]) -> tuple[int, ShardSizes] | None:
    """Return the placement in a view of (T, B, V) as (T*B, V), which consists of T blocks."""
    shape, dim = list(me.shape), me.shard_dim
    alike = zip(shape, want, strict=False)
    first = next((d for d, (a, b) in enumerate(alike) if a != b), len(want))
    blocks = prod(shape[first:dim])
    if first >= min(dim, len(want)) or want[first] % (blocks * me.sizes.total):
        return None
    return first, me.sizes.times(want[first] // (blocks * me.sizes.total)).repeated(blocks)


def _check_view(func: Any, me: ShardedTensor, want: list[int]) -> None:
    """Raise torch's error if the whole has no such view: that of a single row always exists."""
    if me.sizes.smallest < 2 or me.sizes.blocks > 1:
        whole = torch.empty_strided(me.shape, me.stride(), device="meta")
        getattr(whole, func.__name__)(want)


COPIES = ("diag_embed", "repeat", "tile")  # the others return views


@rule(
    *("permute", "movedim", "moveaxis", "transpose", "swapaxes", "swapdims", "t", "adjoint"),
    *("unsqueeze", "select", "narrow", "unbind", "split", "chunk", "tensor_split", "unsafe_chunk"),
    *("split_with_sizes", "diagonal", "diag_embed", "unfold", "repeat", "tile"),
)
@rule(torch.ops.aten.numpy_T, torch.ops.aten.mT)  # the attributes in Dynamo's graphs
@attribute_rule("T", "mT")
def move_dims(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Move, select or repeat along other dimensions; a marked size shows where the batch goes."""
    me, *rest = args
    if not is_sharded(me) or any(isinstance(x, Tensor) for x in (*rest, *kwargs.values())):
        return NotImplemented
    numbers = [n for n in tree_leaves((rest, kwargs)) if type(n) is int]
    mark = max(me.shape) * max([1, *numbers]) + 1  # larger than any other size of the result
    sizes = [mark if dim == me.shard_dim else n for dim, n in enumerate(me.shape)]
    try:
        out = func(torch.empty(sizes, device="meta"), *rest, **kwargs)
    except (RuntimeError, IndexError):
        out = ()  # an error of the whole, or a split
    several = isinstance(out, (tuple, list))
    outs = out if several else [out]
    if not outs or any(list(x.shape).count(mark) != 1 for x in outs):
        return split_blocks(func, me, args, kwargs)
    places = [(list(x.shape).index(mark), me.sizes) for x in outs]
    out_at: Any = places if several else places[0]
    return LocalCall(args, kwargs, out_at, aliases=func.__name__ not in COPIES)


@rule("flatten", "unflatten")
def flatten(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Flatten on local rows, whose batch is merged as the whole one; unflatten by `reshape`."""
    me = args[0]
    if not is_sharded(me) or not me.numel():
        return NotImplemented
    want = list(func(torch.empty(me.shape, device="meta"), *args[1:], **kwargs).shape)
    if func.__name__ == "unflatten":
        return me.reshape(want)
    found = _regrouped(me, want)
    return NotImplemented if found is None else LocalCall(args, kwargs, found, aliases=True)


@rule("squeeze")
def squeeze(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Squeeze by whole sizes: this rank may hold a single row."""
    me = args[0]
    if not is_sharded(me) or len(args) > 2:
        return NotImplemented
    given = kwargs.get("dim", args[1] if len(args) > 1 else tuple(range(me.dim())))
    dims = dims_of(given, me.dim())
    if dims is None or any(d == me.shard_dim and me.shape[d] == 1 for d in dims):
        return NotImplemented
    gone = tuple({d for d in dims if me.shape[d] == 1})
    place = (me.shard_dim - sum(d < me.shard_dim for d in gone), me.sizes)
    if len(args) > 1:
        return LocalCall((me, Const(gone)), {}, place, aliases=True)
    if kwargs:
        return LocalCall(args, {"dim": Const(gone)}, place, aliases=True)
    return alias_of(me, me.local.squeeze(gone), place[0])


@rule("expand", "broadcast_to")
def expand(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Expand other dimensions than the batch."""
    me, *rest = args
    sizes = _listed(rest)
    if not is_sharded(me) or kwargs or not all(type(n) is int for n in sizes):
        return NotImplemented
    at = len(sizes) - me.dim() + me.shard_dim
    if len(sizes) < me.dim() or me.sizes.total == 1 or sizes[at] not in (-1, me.sizes.total):
        return NotImplemented
    sizes[at] = -1
    return _resized(me, rest, sizes, (at, me.sizes))


@uncached_rule("expand_as", "view_as", "reshape_as")
def as_other(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Expand or view by the shape of another tensor."""
    me, other = args[0], args[1] if len(args) > 1 else kwargs.get("other")
    if not isinstance(other, Tensor):
        return NotImplemented
    return getattr(me, func.__name__.removesuffix("_as"))(other.shape)


SHAPES = ("squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_")


@uncached_rule(*SHAPES)
def reshape_in_place(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call the function without the underscore, and give the wrapper the new shape."""
    me, name = args[0], func.__name__
    if not is_sharded(me):
        return NotImplemented
    if name == "t_" and me.dim() < 2:
        return me
    out = getattr(Tensor, name[:-1])(*args, **kwargs)
    if not is_sharded(out):
        raise BadInput(refusal(me.shape, name))
    with torch.no_grad(), plain_tensors(), no_dispatch():
        func(*args, **kwargs)
    me._local, me.spec = out._local, out.spec
    me._whole, me._versions = None, (0, 0)  # gathered in the old shape
    return me


@uncached_rule("resize_", "resize_as_", "as_strided_")
def move_in_place(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Refuse other memory for the same tensor, which shards cannot represent."""
    me, *rest = args
    if not is_sharded(me):
        return NotImplemented
    sizes = rest[0].shape if rest and isinstance(rest[0], Tensor) else _listed(rest)
    if func.__name__ != "as_strided_" and tuple(sizes) == me.shape:
        return me
    raise BadInput(refusal(me.shape, func.__name__))
