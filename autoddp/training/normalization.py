"""BatchNorm over the rows of all ranks: each rank's own part, and the two sums that they share.

The method is torch's SyncBatchNorm, on any backend. For backward nothing is kept of the input but
itself. Where a device has SyncBatchNorm's own kernels they are used, elsewhere those of BatchNorm
on given statistics.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autoddp import torch_internals
from autoddp.comm import accelerator
from autoddp.errors import BadInput
from autoddp.training.batch_stats import LOW, stats_of
from autoddp.training.layouts import dense, laid_out_as
from autoddp.view.boundaries import Boundary, SumWithin

aten = torch.ops.aten
KERNELS = (
    "batch_norm_stats",
    "batch_norm_gather_stats_with_counts",
    "batch_norm_elemt",
    "batch_norm_backward_reduce",
    "batch_norm_backward_elemt",
)
# The module's mean and variance, and its momentum.
Running = tuple[Tensor | None, Tensor | None, float]


@cache
def has_kernels(device: str) -> bool:
    """Return whether a type of device has SyncBatchNorm's own kernels."""
    return all(torch_internals.has_kernel(name, device) for name in KERNELS)


# ---- forward and backward of this rank's rows


def normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: Running, eps: float, group: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalize this rank's rows by the statistics of all rows, which `running` follows.

    Returns:
        The output; of all rows the mean, one over the standard deviation, and each rank's count.
    """
    if has_kernels(x.device.type):
        x = dense(x)
        counts, means, invstds = _of_all(aten.batch_norm_stats(x, eps), x, group)
        mean, invstd = aten.batch_norm_gather_stats_with_counts(
            x,
            means,
            invstds,
            *running,
            eps,
            counts if running[0] is None else counts.to(running[0].dtype),
        )
        return aten.batch_norm_elemt(x, weight, bias, mean, invstd, eps), mean, invstd, counts
    counts, means, invstds = _of_all(stats_of(x, eps), x, group)
    count = counts.sum()
    share = (counts / count).unsqueeze(1)
    mean = (share * means).sum(0)
    var = (share * (invstds.pow(-2) - eps + (means - mean).square())).sum(0)
    follow(running, mean, var, count)
    weight, bias = _as_stats(weight, mean), _as_stats(bias, mean)
    out = aten.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]
    return out, mean, torch.rsqrt(var + eps), counts


def derived(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    stats: tuple[Tensor, Tensor, Tensor],
    group: Any,
    needs_x: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; of the latter two this rank's part."""
    mean, invstd, counts = stats
    own_kernels = has_kernels(x.device.type)
    x = dense(x) if own_kernels else x
    g = laid_out_as(x.stride(), g)
    if own_kernels:
        weight = _as_stats(weight, mean)
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
    var, weight = invstd.pow(-2), _as_stats(weight, mean)  # eps is in it
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
    return of_x.addcmul_(g, _beside(scale, x)), of_weight, of_bias


def follow(running: Running, mean: Tensor, var: Tensor, count: Tensor) -> None:
    """Move the running statistics of the module towards these.

    As of torch's own kernels, that is no write for autograd: a graph of theirs, which has saved the
    statistics, may still be walked.
    """
    running_mean, running_var, momentum = running
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.data.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.data.lerp_((var * (count / (count - 1))).to(running_var.dtype), momentum)


def _of_all(stats: tuple[Tensor, Tensor], x: Tensor, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Gather all ranks' counts, means, and ones over standard deviations."""
    channels = x.shape[1]
    mine = torch.cat([*stats, stats[0].new_full((1,), x.numel() // channels)])
    means, invstds, counts = group.all_gather(mine).split([channels, channels, 1], 1)
    return counts.flatten().clone(), means, invstds  # a view would keep all three


def _as_stats(x: Tensor | None, stats: Tensor) -> Tensor | None:
    return None if x is None else x.to(stats.dtype)


def _beside(x: Tensor, rows: Tensor) -> Tensor:
    return x.view([1, -1] + [1] * (rows.dim() - 2))


# ---- in eager mode


class Normalize(Boundary):
    """The autograd function of `normalized`, differentiable as often as is asked for."""

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
        out, *stats = normalized(x, weight, bias, running, eps, group)
        ctx.save_for_backward(x, weight, *stats)
        ctx.eps, ctx.group = eps, group
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, *stats = ctx.saved_tensors
        found: tuple[Tensor | None, Tensor, Tensor]
        if torch.is_grad_enabled():  # a second derivative will follow
            found = _derived_again(grads[0], x, weight, ctx.eps, ctx.group)
        else:
            needs_x = ctx.needs_input_grad[0]
            found = derived(grads[0], x, weight, tuple(stats), ctx.group, needs_x)
        wanted = zip(found, ctx.needs_input_grad[:3], strict=True)
        return *(g if needed else None for g, needed in wanted), None, None, None


def _derived_again(
    g: Tensor, x: Tensor, weight: Tensor | None, eps: float, group: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what `derived` does, by operators that are differentiable themselves."""
    dtype, wide = x.dtype, torch.float32 if x.dtype in LOW else x.dtype
    x, g = x.to(wide), g.to(wide)
    over = [d for d in range(x.dim()) if d != 1]
    count = SumWithin.apply(x.new_full((1,), x.numel() // x.shape[1]), group)
    d = x - _beside(SumWithin.apply(x.sum(over), group) / count, x)
    invstd = torch.rsqrt(SumWithin.apply((d * d).sum(over), group) / count + eps)
    scaled = d * _beside(invstd, x)
    of_bias, of_weight = g.sum(over), (g * scaled).sum(over)
    sum_g, sum_gx = SumWithin.apply(torch.stack([of_bias, of_weight]), group) / count
    of_x = (g - _beside(sum_g, x) - scaled * _beside(sum_gx, x)) * _beside(invstd, x)
    if weight is not None:
        of_x = of_x * _beside(weight.to(wide), x)
    return of_x.to(dtype), of_weight, of_bias


# ---- under torch.compile


GROUPS: list[Any] = []  # whom an operator in a compiled graph speaks to: the latest


def meet(group: Any, undo: ExitStack) -> None:
    """Have compiled code normalize over these ranks from here on."""
    GROUPS.append(group)
    undo.callback(GROUPS.remove, group)


def _ranks() -> Any:
    """Return whom to speak to: on the host, too, which the replay of a CUDA graph would leave out.

    Raises:
        BadInput: Torch records a graph, since it has no tag that keeps an operator out of it.
    """
    if not torch_internals.GRAPHS_LEAVE_OUT and accelerator.capturing():
        raise BadInput(
            f"torch {torch.__version__} records BatchNorm over ranks in a CUDA graph, which would "
            "not exchange its statistics; use torch 2.8 or later, or compile without CUDA graphs"
        )
    return GROUPS[-1]


@torch_internals.operator_on_host("autoddp::normalize")
def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Call `normalized`, opaque to a compiler."""
    return normalized(x, weight, bias, (None, None, 0.0), eps, _ranks())


@normalize.register_fake
def _(x: Tensor, weight: Any, bias: Any, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    stats = x.new_empty(x.shape[1], dtype=torch.float32 if x.dtype in LOW else x.dtype)
    return (
        torch.empty_like(dense(x)),
        stats,
        torch.empty_like(stats),
        stats.new_empty(GROUPS[-1].size),
    )


@torch_internals.operator_on_host("autoddp::normalize_backward")
def normalize_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    counts: Tensor,
    needs_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Call `derived`, opaque to a compiler."""
    of_x, *others = derived(g, x, weight, (mean, invstd, counts), _ranks(), needs_x)
    return mean.new_empty(0) if of_x is None else of_x, others[0], others[1]


@normalize_backward.register_fake
def _(g: Tensor, x: Tensor, weight: Any, mean: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    of_x = torch.empty_like(dense(x)) if rest[-1] else mean.new_empty(0)
    return of_x, torch.empty_like(mean), torch.empty_like(mean)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, *_ = inputs
    ctx.save_for_backward(x, weight, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, g: Tensor, *_: Any) -> Any:
    x, weight, *stats = ctx.saved_tensors
    found = torch.ops.autoddp.normalize_backward(g, x, weight, *stats, ctx.needs_input_grad[0])
    return *(
        d if needed else None for d, needed in zip(found, ctx.needs_input_grad[:3], strict=True)
    ), None


normalize.register_autograd(_backward, setup_context=_keep)


@torch_internals.operator_on_host("autoddp::add_up")
def add_up(x: Tensor) -> Tensor:
    """Add up over ranks, opaque to a compiler; without a gradient."""
    return _ranks().all_reduce(x.clone(memory_format=torch.contiguous_format))


@add_up.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# Ranks wait for each other in these: a compiler that puts them into another order on one rank, as
# it may by the sizes of tensors, would make ranks exchange what does not belong together.
for _operator in (normalize, normalize_backward, add_up):
    torch_internals.keep_order(_operator)
