"""Views, on this rank's rows as long as each row stays with its rank."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from autoddp.view.boundaries import part
from autoddp.view.rows import Rows, full, split
from autoddp.view.rules.operands import PLAIN, related
from autoddp.view.rules.turns import one_behind_the_other, turns_apart
from autoddp.view.table import attribute_rule, rule

INTS = {int}


def _ints(values: Any) -> bool:
    return set(map(type, values)) <= INTS


def _listed(rest: list[Any]) -> list[Any]:
    """Return sizes as a list of their own, given as such or one by one."""
    return list(rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest)


@rule("view", "reshape")
def view(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """View (B, T, V) as (B*T, V) and back: rows stay contiguous, cuts grow or shrink T times."""
    me, *rest = args
    want = _listed(rest)
    if not split(me) or kwargs or not want or not _ints(want):
        return NotImplemented
    count, unknown, known = prod(me.whole_shape), want.count(-1), prod(want)
    if unknown:
        known = -known
    if not count or unknown > 1 or known < 1 or count % known:
        return NotImplemented
    if unknown:
        want[want.index(-1)] = count // known
    return _regroup(func, me, want)


def _regroup(func: Any, me: Rows, want: list[int]) -> Any:
    """Reshape so that the batch keeps its place, merged with what follows it, or apart again."""
    shape, at, total = list(me.whole_shape), me.at, me.cuts.total
    if prod(want) != prod(shape):
        return NotImplemented
    if want[:at] != shape[:at] or len(want) <= at:
        return _in_turns(func, me, want)
    turns = me.cuts.turns
    if turns > 1 and want[at : at + 2] == [turns, total // turns]:
        cuts, at = me.cuts.of_a_turn(), at + 1  # the inverse of what `_in_turns` makes
    elif want[at] % total == 0:
        cuts = me.cuts.times(want[at] // total)
    elif want[at] and total % want[at] == 0:
        over = me.cuts.over(total // want[at])
        if over is None:
            return NotImplemented
        cuts = over
    else:
        return NotImplemented
    want[at] = cuts.mine
    out = related(me, func(me.local, want), at, cuts)
    out.tally = me.tally and me.tally.of(out)
    return out


def _in_turns(func: Any, me: Rows, want: list[int]) -> Any:
    """View (T, B, V) as (T*B, V): the batch merges with what is before it, and has T turns."""
    shape, at = list(me.whole_shape), me.at
    first = next(
        (d for d, (a, b) in enumerate(zip(shape, want, strict=False)) if a != b), len(want)
    )
    turns = prod(shape[first:at])
    if first >= min(at, len(want)) or want[first] % (turns * me.cuts.total):
        return NotImplemented
    if min(me.cuts.sizes) < 2:
        return NotImplemented  # size 1 hides the memory layout, and ranks must agree on it
    cuts = me.cuts.times(want[first] // (turns * me.cuts.total)).in_turns(turns)
    want[first] = cuts.mine
    with PLAIN():
        viewed = me.is_contiguous()  # so one process has the same memory twice
    if not viewed and func.__name__ == "reshape":
        return Rows(me.local.reshape(want).clone(), cuts, first)
    if not viewed or not me.local.is_contiguous():
        return NotImplemented
    out = related(me, me.local.view(want), first, cuts)
    out.tally = me.tally and me.tally.of(out)
    return out


@rule("flatten")
def flatten(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Flatten dimensions as `reshape` does."""
    me, *rest = args
    if not split(me) or set(kwargs) - {"start_dim", "end_dim"}:
        return NotImplemented
    ndim = me.dim()
    low = kwargs.get("start_dim", rest[0] if rest else 0)
    high = kwargs.get("end_dim", rest[1] if len(rest) > 1 else -1)
    if (
        not _ints([low, high])
        or not -ndim <= low < ndim
        or not -ndim <= high < ndim
        or not me.numel()
    ):
        return NotImplemented
    low, high = low % ndim, high % ndim
    if low > high:
        return NotImplemented
    shape = list(me.shape)
    if low == high:
        return me
    return _regroup(
        Tensor.reshape, me, [*shape[:low], prod(shape[low : high + 1]), *shape[high + 1 :]]
    )


@rule("unsqueeze")
def unsqueeze(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Insert a dimension; before the batch's it moves that."""
    me, *rest = args
    dim = kwargs.get("dim", rest[0] if rest else None)
    if not split(me) or type(dim) is not int or not -me.dim() - 1 <= dim <= me.dim():
        return NotImplemented
    dim %= me.dim() + 1
    return related(me, me.local.unsqueeze(dim), me.at + (dim <= me.at))


@rule("squeeze")
def squeeze(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Squeeze by the sizes of the whole: this rank may hold one row of many."""
    me, *rest = args
    if not split(me) or set(kwargs) - {"dim"}:
        return NotImplemented
    dims = kwargs.get("dim", rest[0] if rest else tuple(range(me.dim())))
    dims = (dims,) if type(dims) is int else dims
    if (
        not isinstance(dims, (tuple, list))
        or not _ints(dims)
        or not all(-me.dim() <= d < me.dim() for d in dims)
    ):
        return NotImplemented
    gone = sorted({d % me.dim() for d in dims if me.shape[d] == 1})
    if me.at in gone:
        return NotImplemented
    if not gone:
        return related(me, me.local.view_as(me.local))
    return related(me, me.local.squeeze(tuple(gone)), me.at - sum(d < me.at for d in gone))


@rule("transpose", "swapaxes", "swapdims")
def transpose(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Swap two dimensions, of which the batch's may be one."""
    me, *rest = args
    if not split(me) or kwargs or len(rest) != 2 or not _ints(rest):
        return NotImplemented
    ndim = me.dim()
    out = func(me.local, *rest)
    a, b = rest[0] % ndim, rest[1] % ndim
    return related(me, out, b if me.at == a else a if me.at == b else me.at)


@rule("t")
def t(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Transpose a batch of two dimensions."""
    me = args[0]
    return related(me, me.local.t(), 1 - me.at) if split(me) and me.dim() == 2 else NotImplemented


_T: Any = getattr(Tensor.T, "__get__")  # noqa: B009  # stubs take it for a tensor


@attribute_rule("T", "mT")
def mirrored(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Transpose by the attributes `T` and `mT`."""
    me = args[0]
    if not split(me) or me.dim() < 2 or (func == _T and me.dim() != 2):
        return NotImplemented
    last = me.dim() - 1
    at = last if me.at == last - 1 else last - 1 if me.at == last else me.at
    return related(me, me.local.mT, at)


@rule("permute", "movedim", "moveaxis")
def permute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Permute dimensions; the batch's is found by a tensor that has only that one marked."""
    me, *rest = args
    if not split(me) or kwargs:
        return NotImplemented
    marks = me.local.new_empty([1 + (d == me.at) for d in range(me.dim())])
    at = list(func(marks, *rest).shape).index(2)
    return related(me, func(me.local, *rest), at)


@rule("roll")
def roll(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Roll along other dimensions; without one all elements would roll."""
    me, *rest = args
    dims = kwargs.get("dims", rest[1] if len(rest) > 1 else None)
    dims = [dims] if type(dims) is int else dims
    if not split(me) or not isinstance(dims, (tuple, list)) or not dims or not _ints(dims):
        return NotImplemented
    if not all(-me.dim() <= d < me.dim() and d % me.dim() != me.at for d in dims):
        return NotImplemented
    return Rows(func(me.local, *rest, **kwargs), me.cuts, me.at)


@rule("select", "narrow", "chunk", "split", "unbind", "tensor_split", "index_select", "flip")
def along_others(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Cut parts of every row, along another dimension."""
    me, *rest = args
    name = func.__name__
    where = {"chunk": 2, "split": 2, "tensor_split": 2}.get(name, 1)
    default = 0 if name in ("chunk", "split", "unbind", "tensor_split") else None
    dim = kwargs.get("dim", kwargs.get("dims", args[where] if len(args) > where else default))
    dims = [dim] if type(dim) is int else list(dim) if isinstance(dim, (tuple, list)) else []
    if (
        not split(me)
        or not dims
        or not _ints(dims)
        or not all(-me.dim() <= d < me.dim() for d in dims)
    ):
        return NotImplemented
    if me.at in [d % me.dim() for d in dims]:
        return turns_apart(me, name, rest[0] if rest else kwargs.get("chunks"))
    if name == "flip" and len(rest) > 1:
        return NotImplemented
    rest = [full(x) for x in rest]
    out = func(me.local, *rest, **{k: full(v) for k, v in kwargs.items()})
    at = me.at - (name in ("select", "unbind") and dims[0] % me.dim() < me.at)
    if isinstance(out, Tensor):
        return related(me, out, at)
    return type(out)(related(me, o, at) for o in out)


@rule("cat", "concat", "concatenate", "stack", "hstack", "vstack")
def join(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Join batches of equal cuts, and wholes of as many rows; along the batch, batches alone."""
    tensors = kwargs.get("tensors", args[0] if args else ())
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if func.__name__ in ("hstack", "vstack") or type(dim) is not int or "out" in kwargs:
        return NotImplemented
    first = (
        next((x for x in tensors if split(x)), None) if isinstance(tensors, (tuple, list)) else None
    )
    if first is not None and func.__name__ != "stack" and dim in (first.at, first.at - first.dim()):
        return one_behind_the_other(func, tensors, first, dim)
    if first is None or not all(isinstance(x, Tensor) and x.dim() == first.dim() for x in tensors):
        return NotImplemented
    if any(x.shape[first.at] != first.cuts.total or x.layout is not torch.strided for x in tensors):
        return NotImplemented
    if any(split(x) and (x.cuts is not first.cuts or x.at != first.at) for x in tensors):
        return NotImplemented
    mine = [x.local if split(x) else part(x, first.cuts, first.at) for x in tensors]
    new = func.__name__ == "stack"
    ndim = first.dim() + new
    if not -ndim <= dim < ndim or (not new and dim % ndim == first.at):
        return NotImplemented
    at = first.at + (new and dim % ndim <= first.at)
    return Rows(func(mine, dim), first.cuts, at)


@rule("expand", "repeat")
def expand(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Expand along other dimensions."""
    me, *rest = args
    sizes = _listed(rest)
    if not split(me) or kwargs or not _ints(sizes) or len(sizes) < me.dim():
        return NotImplemented
    at = len(sizes) - me.dim() + me.at
    fine = (1,) if func.__name__ == "repeat" else (-1, me.cuts.total)
    if sizes[at] not in fine or me.cuts.total == 1:
        return NotImplemented
    sizes[at] = 1 if func.__name__ == "repeat" else -1
    return related(me, func(me.local, *sizes), at)
