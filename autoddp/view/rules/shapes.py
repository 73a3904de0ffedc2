"""Views and shape functions, on local parts as long as each row stays with its rank."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from autoddp.view.local_call import Const, LocalCall
from autoddp.view.rules.operands import constants, dim_of, dims_of, is_int, related, view_of_rows
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded
from autoddp.view.table import attribute_rule, rule


def _listed(rest: Any) -> list[Any]:
    """Return sizes as a list of their own, given as such or one by one."""
    return list(rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest)


def _sizes_in_place(rest: Any, sizes: list[int]) -> list[Any]:
    """Return sizes as they were given, as a tuple or one by one, for a local call."""
    listed = len(rest) == 1 and isinstance(rest[0], (tuple, list))
    return [Const(tuple(sizes))] if listed else constants(sizes)


@rule("view", "reshape")
def view(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """View (B, T, V) as (B*T, V) and back: rows stay contiguous, T times as many or as few."""
    me, *rest = args
    want = _listed(rest)
    if not is_sharded(me) or kwargs or not want or not all(map(is_int, want)):
        return NotImplemented
    count, unknown, known = me.numel(), want.count(-1), prod(want)
    known = -known if unknown else known
    if not count or unknown > 1 or known < 1 or count % known:
        return NotImplemented
    if unknown:
        want[want.index(-1)] = count // known
    found = _regrouped(me, want)
    if found is None or not _viewable(func, me, want):
        return NotImplemented
    dim, sizes = found
    want[dim] = sizes.local
    args = (me, *_sizes_in_place(rest, want))
    return view_of_rows(me, args, kwargs, dim, sizes, all_elements=True)


def _regrouped(me: ShardedTensor, want: list[int]) -> tuple[int, ShardSizes] | None:
    """Return where the batch lies in a result of this shape: each row stays with its rank.

    It keeps its place, merged with what follows it, or apart again; or it is merged with what is
    before it, and consists of blocks.
    """
    shape, dim, sizes = list(me.shape), me.shard_dim, me.sizes
    if prod(want) != prod(shape):
        return None
    before = prod(shape[:dim])  # elements before, in units of what is behind
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
    # dimensions of size 1 leave several places, of which one keeps the sizes if any does
    places = [k for k in range(place, len(want)) if prod(want[place:k]) == 1]
    fits = [(k, s) for k in places if (s := _sizes_of(sizes, want[k])) is not None]
    return next((fit for fit in fits if fit[1] is sizes), fits[0] if fits else None)


def _sizes_of(sizes: ShardSizes, total: int) -> ShardSizes | None:
    """Return the sizes of as many rows, merged with what is behind them, or apart again."""
    if total and total % sizes.total == 0:
        return sizes.times(total // sizes.total)
    return sizes.over(sizes.total // total) if total and sizes.total % total == 0 else None


def _in_blocks(me: ShardedTensor, want: list[int]) -> tuple[int, ShardSizes] | None:
    """View (T, B, V) as (T*B, V): the batch merges with what is before it, and has T blocks."""
    shape, dim = list(me.shape), me.shard_dim
    alike = zip(shape, want, strict=False)
    first = next((d for d, (a, b) in enumerate(alike) if a != b), len(want))
    blocks = prod(shape[first:dim])
    if first >= min(dim, len(want)) or want[first] % (blocks * me.sizes.total):
        return None
    return first, me.sizes.times(want[first] // (blocks * me.sizes.total)).repeated(blocks)


def _viewable(func: Any, me: ShardedTensor, want: list[int]) -> bool:
    """Return whether the whole can be viewed so, where a rank of one row could in any case."""
    if me.sizes.smallest > 1 and me.sizes.blocks == 1:
        return True
    whole = torch.empty_strided(me.shape, me.stride(), device="meta")
    getattr(whole, func.__name__)(want)  # raises as one process does
    return True


@rule("flatten")
def flatten(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Flatten dimensions as `reshape` does."""
    me, *rest = args
    if not is_sharded(me) or set(kwargs) - {"start_dim", "end_dim"}:
        return NotImplemented
    ndim = me.dim()
    low = dim_of(kwargs.get("start_dim", rest[0] if rest else 0), ndim)
    high = dim_of(kwargs.get("end_dim", rest[1] if len(rest) > 1 else -1), ndim)
    if low is None or high is None or low > high or not me.numel():
        return NotImplemented
    if low == high:
        return LocalCall(args, kwargs, me.placement, aliases=True)
    shape = list(me.shape)
    want = [*shape[:low], prod(shape[low : high + 1]), *shape[high + 1 :]]
    found = _regrouped(me, want)
    if found is None:
        return NotImplemented
    return view_of_rows(me, args, kwargs, *found, all_elements=True)


@rule("unflatten")
def unflatten(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Take a dimension apart; the batch's only into more rows behind it."""
    if kwargs or len(args) != 3 or not is_sharded(args[0]):
        return NotImplemented
    me, dim, parts = args
    dim = dim_of(dim, me.dim())
    if dim is None or not isinstance(parts, (tuple, list)) or not all(map(is_int, parts)):
        return NotImplemented
    if dim != me.shard_dim:
        return view_of_rows(
            me, args, kwargs, me.shard_dim + (len(parts) - 1) * (dim < me.shard_dim)
        )
    sizes = list(parts)
    if -1 in sizes:
        sizes[sizes.index(-1)] = me.sizes.total // -prod(sizes)
    found = _regrouped(me, [*me.shape[:dim], *sizes, *me.shape[dim + 1 :]])
    if found is None:
        return NotImplemented
    sizes[found[0] - dim] = found[1].local
    return view_of_rows(me, (me, args[1], Const(tuple(sizes))), kwargs, *found)


@rule("unsqueeze")
def unsqueeze(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Insert a dimension; before the batch's it moves that."""
    me, *rest = args
    dim = dim_of(kwargs.get("dim", rest[0] if rest else None), me.dim() + 1)
    if not is_sharded(me) or dim is None:
        return NotImplemented
    at = me.shard_dim + (dim <= me.shard_dim)
    return view_of_rows(me, args, kwargs, at, all_elements=True)


@rule("squeeze")
def squeeze(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Squeeze by the sizes of the whole: this rank may hold one row of many."""
    me, *rest = args
    if not is_sharded(me) or set(kwargs) - {"dim"}:
        return NotImplemented
    dims = dims_of(kwargs.get("dim", rest[0] if rest else tuple(range(me.dim()))), me.dim())
    if dims is None:
        return NotImplemented
    gone = sorted({d for d in dims if me.shape[d] == 1})
    if me.shard_dim in gone:
        return NotImplemented
    at = me.shard_dim - sum(d < me.shard_dim for d in gone)
    if rest:
        return view_of_rows(me, (me, Const(tuple(gone))), kwargs, at)
    if kwargs:
        return view_of_rows(me, args, {"dim": Const(tuple(gone))}, at)
    return related(me, me.local.squeeze(tuple(gone)), at)


@rule("transpose", "swapaxes", "swapdims")
def transpose(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Swap two dimensions, of which the batch's may be one."""
    me, *rest = args
    if not is_sharded(me) or kwargs or len(rest) != 2:
        return NotImplemented
    a, b = (dim_of(d, me.dim()) for d in rest)
    if a is None or b is None:
        return NotImplemented
    at = me.shard_dim
    return view_of_rows(me, args, kwargs, b if at == a else a if at == b else at)


@rule("t")
def t(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Transpose a batch of two dimensions."""
    me = args[0]
    if not is_sharded(me) or me.dim() != 2:
        return NotImplemented
    return view_of_rows(me, args, kwargs, 1 - me.shard_dim)


_T: Any = getattr(Tensor.T, "__get__")  # noqa: B009  # stubs take it for a tensor


@attribute_rule("T", "mT")
def mirrored(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Transpose by the attributes `T` and `mT`."""
    me = args[0]
    if not is_sharded(me) or me.dim() < 2 or (func == _T and me.dim() != 2):
        return NotImplemented
    last = me.dim() - 1
    swapped = {last: last - 1, last - 1: last}
    at = swapped.get(me.shard_dim, me.shard_dim)
    return ShardedTensor(me.local.mT, me.sizes, at, me.aliases)


@rule("adjoint")
def adjoint(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Transpose the last two dimensions, and conjugate."""
    me = args[0]
    if not is_sharded(me) or me.dim() < 2:
        return NotImplemented
    last = me.dim() - 1
    at = {last: last - 1, last - 1: last}.get(me.shard_dim, me.shard_dim)
    return view_of_rows(me, args, kwargs, at)


@rule("permute", "movedim", "moveaxis")
def permute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Permute dimensions; the batch's is found by a tensor that has only that one marked."""
    me, *rest = args
    if not is_sharded(me):
        return NotImplemented
    marks = torch.empty([1 + (d == me.shard_dim) for d in range(me.dim())], device="meta")
    at = list(func(marks, *rest, **kwargs).shape).index(2)
    return view_of_rows(me, args, kwargs, at)


@rule("expand", "broadcast_to", "repeat", "tile")
def expand(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Expand along other dimensions."""
    me, *rest = args
    sizes = _listed(rest)
    if not is_sharded(me) or kwargs or not all(map(is_int, sizes)):
        return NotImplemented
    if func.__name__ == "tile" and len(sizes) < me.dim():
        at = me.shard_dim
        fine = at < me.dim() - len(sizes) or sizes[at - me.dim() + len(sizes)] == 1
        return LocalCall(args, kwargs, me.placement) if fine else NotImplemented
    at = len(sizes) - me.dim() + me.shard_dim
    if len(sizes) < me.dim() or me.sizes.total == 1:
        return NotImplemented
    if func.__name__ not in ("expand", "broadcast_to"):
        return LocalCall(args, kwargs, (at, me.sizes)) if sizes[at] == 1 else NotImplemented
    if sizes[at] not in (-1, me.sizes.total):
        return NotImplemented
    sizes[at] = -1
    return view_of_rows(me, (me, *_sizes_in_place(rest, sizes)), kwargs, at)


@rule("expand_as", "view_as", "reshape_as")
def as_other(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Give a batch the shape of another sharded tensor, row by row."""
    me, other = args[0], args[1] if len(args) > 1 else None
    if kwargs or not is_sharded(me) or not is_sharded(other) or other.sizes is not me.sizes:
        return NotImplemented
    if func.__name__ == "expand_as":
        aligns = other.dim() - other.shard_dim == me.dim() - me.shard_dim
        fits = aligns and me.shape[me.shard_dim] == other.shape[other.shard_dim]
    else:
        fits = _regrouped(me, list(other.shape)) == other.placement
        fits = fits and _viewable(Tensor.reshape, me, list(other.shape))
    return view_of_rows(me, args, kwargs, other.shard_dim) if fits else NotImplemented
