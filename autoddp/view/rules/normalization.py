"""BatchNorm over the rows of all ranks, and the running statistics of InstanceNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # the field's name for it

from autoddp.view.batch_norm import LOW, Normalize, keep_layout
from autoddp.view.local_call import LocalCall
from autoddp.view.rules.arguments import arguments
from autoddp.view.rules.operands import any_sharded
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded
from autoddp.view.table import computed, rule


@rule("batch_norm")
def batch_norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Normalize by statistics of all rows, or by given ones, which each rank has.

    A result is no decision: with statistics of all rows it is computed at each call.
    """
    given = arguments(func, args, kwargs)
    me = given.pop("input", None)
    if (
        func is not F.batch_norm
        or not is_sharded(me)
        or me.shard_dim != 0
        or any_sharded(given.values())
    ):
        return NotImplemented
    view = me.sizes.view
    if not given["training"] and me.sizes.smallest > 1:
        return LocalCall(args, kwargs, me.placement)
    if not given["training"] or not view.batch_statistics:
        out = func(me.local, **given)
        return ShardedTensor(keep_layout(me.local, out), me.sizes)
    if me.numel() == me.shape[1]:  # torch refuses a single value for each channel
        func(torch.empty(me.shape, device="meta"), None, None, training=True)
    running = (given["running_mean"], given["running_var"], given["momentum"])
    over = (given["weight"], given["bias"], running, given["eps"], view.group)
    return ShardedTensor(Normalize.apply(me.local, *over), me.sizes)


@computed("instance_norm")
def instance_norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Normalize each row by itself; running statistics follow all rows of the batch."""
    given = arguments(func, args, kwargs)
    me = given.pop("input", None)
    if func is not F.instance_norm or not is_sharded(me) or me.shard_dim != 0:
        return NotImplemented
    if any_sharded(given.values()):
        return NotImplemented
    view, mean, var = me.sizes.view, given["running_mean"], given["running_var"]
    if mean is None or var is None or not given["use_input_stats"] or not view.batch_statistics:
        return LocalCall(args, kwargs, me.placement)
    _follow(me.local.detach(), mean, var, given["momentum"], view.group)
    given |= {"input": me.local, "running_mean": None, "running_var": None}
    return ShardedTensor(func(**given), me.sizes)


def _follow(x: Tensor, mean: Tensor, var: Tensor, momentum: float, group: Any) -> None:
    """Move running statistics towards the mean over all rows of each row's mean and variance."""
    if x.dtype in LOW:
        x = x.float()
    over = list(range(2, x.dim()))
    figures = torch.cat([x.mean(over), x.var(over), x.new_ones(len(x), 1)], 1).sum(0)
    means, variances, count = group.all_reduce(figures).tensor_split((x.shape[1], 2 * x.shape[1]))
    with torch.no_grad():
        mean.lerp_((means / count).to(mean.dtype), momentum)
        var.lerp_((variances / count).to(var.dtype), momentum)
