"""Reductions: over all elements, over the batch, or within rows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from autoddp.view.local_call import GATHER_ONCE
from autoddp.view.redistribute import SumOverRanks, with_node_name
from autoddp.view.rules import rows
from autoddp.view.rules.operands import arguments, dims_of
from autoddp.view.rules.pointwise import pointwise
from autoddp.view.sharded_tensor import Partial, ShardedTensor, is_sharded
from autoddp.view.table import rule

LOW = (torch.float16, torch.bfloat16)  # summed in float32, as in torch's kernels


@rule("sum", "mean", "max", "min", "any", "all")
def reduce(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Reduce over dimensions, `x.mean(1)`, `x.sum((0, 2))`, or over all elements."""
    me = args[0]
    if is_sharded(me) and not args[1:] and not kwargs:
        return over_everything(func.__name__, me)
    bound = arguments(func, args, kwargs)
    if isinstance(bound.get("other"), Tensor):
        return pointwise(func, args, kwargs)  # torch.max(x, y)
    if not is_sharded(me) or bound.get("out") is not None:
        return NotImplemented
    dims = dims_of(bound.get("dim"), me.dim())
    if dims is not None and me.shard_dim in dims:
        return over_batch(func.__name__, me, dims, bound)
    return rows.rowwise(rows.named_dims, True, func, args, kwargs)


def over_everything(name: str, me: ShardedTensor) -> Any:
    """Reduce to a number; a sum or mean stays partial until it is read."""
    local = me.local
    view = me.sizes.view
    if name in ("sum", "mean"):
        if name == "mean" and not (local.is_floating_point() or local.is_complex()):
            return GATHER_ONCE
        low = local.dtype in LOW
        if low and torch.is_autocast_enabled(local.device.type):
            return GATHER_ONCE  # autocast decides the dtype
        total = local.sum(dtype=torch.float32) if low else local.sum()
        dtype = local.dtype if low else total.dtype
        if name == "sum":
            return Partial(total, view, dtype)
        pending = view.pending.add(total, me.numel())
        return Partial(total / me.numel(), view, dtype, pending, "MeanBackward0")
    needs = local.requires_grad and torch.is_grad_enabled()
    if needs or local.is_complex() or not me.numel():
        return GATHER_ONCE
    return getattr(view.group.all_gather(getattr(local, name)()), name)()


def over_batch(name: str, me: ShardedTensor, dims: list[int], bound: dict[str, Any]) -> Any:
    """Compute `x.sum(0)` or `x.mean((0, 2, 3))` by one all-reduce of the local sums."""
    local, keepdim = me.local, bound["keepdim"]
    if name not in ("sum", "mean") or bound["dtype"] is not None:
        return NotImplemented
    inexact = local.is_floating_point() or local.is_complex()
    if local.dtype in LOW or (name == "mean" and not inexact):
        return GATHER_ONCE
    total, group = local.sum(dims, keepdim=keepdim), me.sizes.view.group
    if name == "sum":
        return with_node_name(SumOverRanks, "SumBackward1").apply(total, group)
    count = math.prod(me.shape[dim] for dim in set(dims))
    # divided once, by one rank as by all: a mean of counts is that of one process
    whole = total.detach().clone(memory_format=torch.contiguous_format)
    mean = group.all_reduce(whole) / count
    return with_node_name(SumOverRanks, "MeanBackward1").apply(total / count, group, mean)
