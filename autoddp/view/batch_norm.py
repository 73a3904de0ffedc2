"""BatchNorm with statistics over all ranks, like torch's SyncBatchNorm, on any backend.

Only the input is saved for backward. The kernels are those of SyncBatchNorm on devices that have
them, and otherwise those of BatchNorm with given statistics.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from autoddp import torch_internals
from autoddp.own_hooks import own_hooks
from autoddp.view.redistribute import Boundary, SumWithin

aten = torch.ops.aten
KERNELS = (
    "batch_norm_stats",
    "batch_norm_gather_stats_with_counts",
    "batch_norm_elemt",
    "batch_norm_backward_reduce",
    "batch_norm_backward_elemt",
)
# running mean, running variance, momentum
Running = tuple[Tensor | None, Tensor | None, float]

LOW = (torch.float16, torch.bfloat16)


@cache
def has_kernels(device: str) -> bool:
    """Return whether a device type has the kernels of SyncBatchNorm."""
    return all(torch_internals.has_kernel(name, device) for name in KERNELS)


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: Running, eps: float, group: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalize this rank's rows by the statistics of all rows, and update `running`.

    Returns:
        The output, the mean, the inverse standard deviation, and the count of each rank.
    """
    if has_kernels(x.device.type):
        x = dense(x)
        counts, means, invstds = _gather_stats(aten.batch_norm_stats(x, eps), x, group)
        mean, invstd = aten.batch_norm_gather_stats_with_counts(
            x,
            means,
            invstds,
            *running,
            eps,
            counts if running[0] is None else counts.to(running[0].dtype),
        )
        return aten.batch_norm_elemt(x, weight, bias, mean, invstd, eps), mean, invstd, counts
    counts, means, invstds = _gather_stats(stats_of(x, eps), x, group)
    count = counts.sum()
    share = (counts / count).unsqueeze(1)
    mean = (share * means).sum(0)
    var = (share * (invstds.pow(-2) - eps + (means - mean).square())).sum(0)
    update_running_stats(running, mean, var, count)
    weight, bias = _cast(weight, mean), _cast(bias, mean)
    out = aten.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]
    return out, mean, torch.rsqrt(var + eps), counts


def gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    stats: tuple[Tensor, Tensor, Tensor],
    group: Any,
    needs_x: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; the last two for this rank's rows."""
    mean, invstd, counts = stats
    sync_kernels = has_kernels(x.device.type)
    x = dense(x) if sync_kernels else x
    g = with_strides(x.stride(), g)
    if sync_kernels:
        weight = _cast(weight, mean)
        sum_g, sum_gx, of_weight, of_bias = aten.batch_norm_backward_reduce(
            g, x, mean, invstd, weight, True, True, True
        )
        if not needs_x:
            return None, of_weight, of_bias
        sums = group.all_reduce(torch.cat([sum_g, sum_gx])).chunk(2)
        of_x = aten.batch_norm_backward_elemt(
            g, x, mean, invstd, weight, *sums, counts.to(torch.int32)
        )
        return of_x, of_weight, of_bias
    var, weight = invstd.pow(-2), _cast(weight, mean)  # includes eps
    _, of_weight, of_bias = aten.native_batch_norm_backward(
        g, x, weight, mean, var, None, None, False, 0.0, [False, True, True]
    )
    if not needs_x:
        return None, of_weight, of_bias
    sums = group.all_reduce(torch.stack([of_weight, of_bias]))
    scale = invstd if weight is None else invstd * weight
    of_x = aten.native_batch_norm(x, *(sums * (scale / -counts.sum())), mean, var, False, 0.0, 0.0)[
        0
    ]
    return of_x.addcmul_(g, _per_channel(scale, x)), of_weight, of_bias


def update_running_stats(running: Running, mean: Tensor, var: Tensor, count: Tensor) -> None:
    """Update the running statistics of a module.

    As in torch's kernels, autograd sees no write: a graph that saved the statistics stays valid.
    """
    running_mean, running_var, momentum = running
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.data.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.data.lerp_((var * (count / (count - 1))).to(running_var.dtype), momentum)


def _gather_stats(
    stats: tuple[Tensor, Tensor], x: Tensor, group: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """All-gather counts, means and inverse standard deviations."""
    channels = x.shape[1]
    local = torch.cat([*stats, stats[0].new_full((1,), x.numel() // channels)])
    means, invstds, counts = group.all_gather(local).split([channels, channels, 1], 1)
    return counts.flatten().clone(), means, invstds  # a view would keep all three alive


def _cast(x: Tensor | None, stats: Tensor) -> Tensor | None:
    return None if x is None else x.to(stats.dtype)


def _per_channel(x: Tensor, rows: Tensor) -> Tensor:
    return x.view([1, -1] + [1] * (rows.dim() - 2))


class Normalize(Boundary):
    """Autograd function of `normalize`, differentiable any number of times."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: Running,
        eps: float,
        group: Any,
    ) -> Tensor:
        out, *stats = normalize(x, weight, bias, running, eps, group)
        ctx.save_for_backward(x, weight, *stats)
        ctx.eps, ctx.group = eps, group
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, *stats = ctx.saved_tensors
        results: tuple[Tensor | None, Tensor, Tensor]
        if torch.is_grad_enabled():  # for a second derivative
            results = _differentiable_gradients(grads[0], x, weight, ctx.eps, ctx.group)
        else:
            needs_x = ctx.needs_input_grad[0]
            results = gradients(grads[0], x, weight, tuple(stats), ctx.group, needs_x)
        pairs = zip(results, ctx.needs_input_grad[:3], strict=True)
        return *(g if needed else None for g, needed in pairs), None, None, None


def _differentiable_gradients(
    g: Tensor, x: Tensor, weight: Tensor | None, eps: float, group: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what `gradients` returns by differentiable operators."""
    dtype, wide = x.dtype, torch.float32 if x.dtype in LOW else x.dtype
    x, g = x.to(wide), g.to(wide)
    dims = [d for d in range(x.dim()) if d != 1]
    count = SumWithin.apply(x.new_full((1,), x.numel() // x.shape[1]), group)
    d = x - _per_channel(SumWithin.apply(x.sum(dims), group) / count, x)
    invstd = torch.rsqrt(SumWithin.apply((d * d).sum(dims), group) / count + eps)
    scaled = d * _per_channel(invstd, x)
    of_bias, of_weight = g.sum(dims), (g * scaled).sum(dims)
    sum_g, sum_gx = SumWithin.apply(torch.stack([of_bias, of_weight]), group) / count
    of_x = (g - _per_channel(sum_g, x) - scaled * _per_channel(sum_gx, x)) * _per_channel(invstd, x)
    if weight is not None:
        of_x = of_x * _per_channel(weight.to(wide), x)
    return of_x.to(dtype), of_weight, of_bias


def stats_of(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the mean and the inverse standard deviation of each channel of local rows."""
    if x.device.type == "cpu":  # one pass; float32 statistics make it sum float16 in float32
        unused = x.new_zeros(x.shape[1], dtype=torch.float32) if x.dtype in LOW else None
        mean, var = aten.batch_norm_update_stats(x, unused, unused, 0.0)
    else:
        x = x.float() if x.dtype in LOW else x
        var, mean = torch.var_mean(x, [d for d in range(x.dim()) if d != 1], correction=0)
    return mean, torch.rsqrt(var + eps)


def dense(x: Tensor) -> Tensor:
    """Return `x` in a dense layout that SyncBatchNorm's kernels accept."""
    last = (torch.channels_last, torch.channels_last_3d)
    return x if any(x.is_contiguous(memory_format=kind) for kind in last) else x.contiguous()


def with_strides(strides: tuple[int, ...], g: Tensor) -> Tensor:
    """Return `g` with these strides.

    torch's CPU kernel (2.6 to 2.14) computes different numbers for a single row in another layout.
    """
    if g.stride() == strides:
        return g
    return torch.empty_strided(g.shape, strides, dtype=g.dtype, device=g.device).copy_(g)


def keep_layout(x: Tensor, out: Tensor) -> Tensor:
    """Return `out` with a hook that gives its gradient the layout of `x`."""
    if len(x) == 1 and out.requires_grad:
        strides = x.stride()
        # a function of this module: a hook of the script would see the mean over ranks
        with own_hooks():
            out.register_hook(lambda g: with_strides(strides, g))
    return out
