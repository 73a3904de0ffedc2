"""Reductions, softmaxes and sorts along dimensions but the batch's, and sums over the batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from autoddp.view.local_call import ONCE, LocalCall
from autoddp.view.redistribute import SumOverRanks, named
from autoddp.view.rules.operands import any_sharded, bound, dims_of
from autoddp.view.rules.pointwise import pointwise
from autoddp.view.sharded_tensor import Partial, ShardedTensor, is_sharded
from autoddp.view.table import in_place, rule

# name -> where `dim` stands among the arguments; these remove the dimension unless keepdim
REMOVE = dict.fromkeys(
    [
        "sum",
        "mean",
        "argmax",
        "argmin",
        "max",
        "min",
        "logsumexp",
        "amax",
        "amin",
        "any",
        "all",
        "prod",
        "var",
        "std",
        "median",
        "mode",
        "nansum",
        "nanmean",
        "nanmedian",
        "count_nonzero",
        "aminmax",
        "var_mean",
        "std_mean",
    ],
    1,
) | dict.fromkeys(["norm", "kthvalue", "vector_norm", "matrix_norm"], 2)
KEEP = {
    "softmax": 1,
    "log_softmax": 1,
    "cumsum": 1,
    "cumprod": 1,
    "cumsum_": 1,
    "cumprod_": 1,
    "cummax": 1,
    "cummin": 1,
    "logcumsumexp": 1,
    "softmin": 1,
    "diff": 2,
    "msort": 9,
    "sort": 1,
    "argsort": 1,
    "topk": 2,
    "glu": 1,
}
DEFAULTS: dict[str, Any] = {
    "sort": -1,
    "argsort": -1,
    "topk": -1,
    "kthvalue": -1,
    "glu": -1,
    "diff": -1,
}
DEFAULTS |= {"msort": 0, "matrix_norm": (-2, -1)}
LOW = (torch.float16, torch.bfloat16)  # summed in float32, as torch does inside


@rule(*REMOVE)
def remove(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Reduce over dimensions, `x.argmax(1)`, `x.sum((1, 2))`, or over all of the batch at once."""
    me, *rest = args
    name = func.__name__.removeprefix("linalg_")
    where = REMOVE.get(name, 1)
    if name in ("max", "min") and rest and isinstance(rest[0], Tensor):
        return pointwise(func, args, kwargs)
    if not is_sharded(me) or kwargs.get("out") is not None or any_sharded(rest):
        return NotImplemented
    value = kwargs.get("dim", args[where] if len(args) > where else DEFAULTS.get(name))
    if value is None:
        return NotImplemented if rest or kwargs else over_everything(name, me)
    dims = dims_of(value, me.dim())
    if dims is None:
        return NotImplemented
    keepdim = kwargs.get("keepdim", len(args) > where + 1 and args[where + 1])
    if (name in ("var", "std", "var_mean", "std_mean") and len(args) > 2) or not isinstance(
        keepdim, bool
    ):
        return NotImplemented  # the old form, with `unbiased` by position
    if me.shard_dim in dims:
        return over_batch(func, name, me, dims, keepdim, kwargs)
    at = me.shard_dim if keepdim else me.shard_dim - sum(d < me.shard_dim for d in dims)
    return LocalCall(args, kwargs, (at, me.sizes))


def over_everything(name: str, me: ShardedTensor) -> Any:
    """Reduce to a number: a sum stays a part until somebody reads it; extremes are read at once."""
    local = me.local
    view = me.sizes.view
    if name in ("sum", "mean"):
        if name == "mean" and not (local.is_floating_point() or local.is_complex()):
            return ONCE
        low = local.dtype in LOW
        if low and torch.is_autocast_enabled(local.device.type):
            return ONCE  # autocast decides the dtype
        total = local.sum(dtype=torch.float32) if low else local.sum()
        dtype = local.dtype if low else total.dtype
        if name == "sum":
            return Partial(total, view, dtype)
        known = view.pending.add(total, me.numel())
        return Partial(total / me.numel(), view, dtype, known, "MeanBackward0")
    needs = local.requires_grad and torch.is_grad_enabled()
    if needs or local.is_complex() or not me.numel() or not me.sizes.smallest:
        return ONCE
    if name not in ("max", "min", "any", "all"):
        return NotImplemented
    return getattr(view.group.all_gather(getattr(local, name)()), name)()


def over_batch(
    func: Any, name: str, me: ShardedTensor, dims: list[int], keepdim: bool, kwargs: dict[str, Any]
) -> Any:
    """Compute `x.sum(0)`, `x.mean((0, 2, 3))` by one all-reduce, at most as large as a row."""
    local = me.local
    if name not in ("sum", "mean") or set(kwargs) - {"dim", "keepdim"}:
        return NotImplemented
    inexact = local.is_floating_point() or local.is_complex()
    if local.dtype in LOW or (name == "mean" and not inexact):
        return ONCE
    total, node = local.sum(dims, keepdim=keepdim), "SumBackward1"
    if name == "mean":
        total, node = total / math.prod(me.shape[dim] for dim in set(dims)), "MeanBackward1"
    return named(SumOverRanks, node).apply(total, me.sizes.view.group)


@rule(*KEEP)
def keep(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `softmax`, `cumsum`, `topk` along another dimension than the batch's."""
    me, *rest = args
    name = func.__name__
    if not is_sharded(me) or kwargs.get("out") is not None or any_sharded(rest):
        return NotImplemented
    where = KEEP.get(name, 1)
    value = kwargs.get("dim", args[where] if len(args) > where else DEFAULTS.get(name))
    dims = dims_of(value, me.dim())
    if dims is None or me.shard_dim in dims:
        return NotImplemented
    if any(isinstance(x, Tensor) for x in (*rest, *kwargs.values())):
        return NotImplemented  # what `diff` puts before and behind
    return LocalCall(args, kwargs, me.placement, in_place=in_place(func))


@rule("quantile", "nanquantile")
def quantile(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute quantiles along another dimension; several lie along a first one of their own."""
    given = bound(("input", "q", "dim", "keepdim"), args, kwargs) or {}
    me, q, keepdim = given.get("input"), given.get("q"), given.get("keepdim", False)
    if not is_sharded(me) or is_sharded(q) or given.get("out") is not None:
        return NotImplemented
    dims = dims_of(given.get("dim"), me.dim())
    if dims is None or me.shard_dim in dims or not isinstance(keepdim, bool):
        return NotImplemented
    several = isinstance(q, Tensor) and q.dim() == 1
    at = me.shard_dim - (not keepdim and dims[0] < me.shard_dim) + several
    return LocalCall(args, kwargs, (at, me.sizes))


@rule("isin", "bucketize")
def among(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Look each element up in a replicated tensor."""
    me, *rest = args
    if not is_sharded(me) or any_sharded([*rest, *kwargs.values()]) or "out" in kwargs:
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


@rule("searchsorted")
def searchsorted(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Look elements up in one replicated sequence, or in that of their row."""
    if len(args) != 2 or not is_sharded(args[1]) or set(kwargs) - {"right", "side", "out_int32"}:
        return NotImplemented
    sequence, me = args
    of_row = is_sharded(sequence) and sequence.placement == me.placement
    of_row = of_row and sequence.dim() == me.dim() > me.shard_dim + 1
    if not of_row and (not isinstance(sequence, Tensor) or sequence.dim() != 1):
        return NotImplemented
    if is_sharded(sequence) and not of_row:
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)
