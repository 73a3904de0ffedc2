"""BatchNorm inside a split call takes its statistics over the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autoddp.patching import Feature, patch
from autoddp.run import Run
from autoddp.view import Rows, split
from autoddp.view.boundaries import SumWithin

LOW = (torch.float16, torch.bfloat16)


class BatchNorm(Feature):
    """Count, mean and squared distance from it, of every rank, by one differentiable all-reduce.

    No module changes its type. Method: torch's SyncBatchNorm, in terms that run on any backend. A sum
    of squares less the square of a sum would lose its digits where the mean is far from zero.
    """

    name = "batchnorm"
    without = "each rank normalizes by the statistics of its own rows"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.view, self.exact = run.view, run.options.batchnorm == "exact"

    @patch(
        "torch.nn.functional:batch_norm",
        why="statistics over the whole batch, where a rank holds rows of it",
        hot=True,
    )
    def batch_norm(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A plain function, since torch.compile looks into it."""
        view = self.view

        def batch_norm(
            input: Tensor,
            running_mean: Tensor | None,
            running_var: Tensor | None,
            weight: Tensor | None = None,
            bias: Tensor | None = None,
            training: bool = False,
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> Tensor:
            given = (running_mean, running_var, weight, bias)
            if torch.compiler.is_compiling() or not view.here():
                return plain(input, *given, training, momentum, eps)
            if not training:
                if split(input) and input.at == 0:
                    return Rows(plain(input.local, *given, False, momentum, eps), input.cuts)
                return plain(input, *given, training, momentum, eps)
            if view.proving:  # what remains must be row-wise: statistics as in eval
                view.normalized.append(input.detach().clone())
                zero, one = input.new_zeros(input.shape[1]), input.new_ones(input.shape[1])
                mean, var = (zero, one) if running_mean is None else (running_mean, running_var)
                return plain(input, mean, var, weight, bias, False, momentum, eps)
            if split(input) and input.at == 0 and self.exact:
                return Rows(self._over_ranks(input.local, *given, momentum, eps), input.cuts)
            if view.region is not None and self.exact:
                return self._over_ranks(input, *given, momentum, eps)
            return plain(input, *given, training, momentum, eps)

        return batch_norm

    @patch(
        "torch.nn.functional:instance_norm",
        why="its running statistics follow the whole batch, where a rank holds rows of it",
        hot=True,
    )
    def instance_norm(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Each row is normalized by itself; only what is kept for later is of all rows."""
        view = self.view

        def instance_norm(
            input: Tensor,
            running_mean: Tensor | None = None,
            running_var: Tensor | None = None,
            weight: Tensor | None = None,
            bias: Tensor | None = None,
            use_input_stats: bool = True,
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> Tensor:
            given = (running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
            if torch.compiler.is_compiling() or not view.here() or not self.exact:
                return plain(input, *given)
            if running_mean is None or running_var is None or not use_input_stats:
                return plain(input, *given)
            by_rows = split(input) and input.at == 0
            if not by_rows and not view.inside:
                return plain(input, *given)
            x = input.local if split(input) else input
            if view.proving:
                view.normalized.append(x.detach().clone())
            else:
                self._follow(x.detach(), running_mean, running_var, momentum)
            out = plain(x, None, None, *given[2:])
            return Rows(out, input.cuts) if split(input) else out

        return instance_norm

    def _follow(self, x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float) -> None:
        """The mean over all rows of what each row's mean and variance are."""
        if x.dtype in LOW:
            x = x.float()
        over = list(range(2, x.dim()))
        figures = torch.cat([x.mean(over), x.var(over), x.new_ones(len(x), 1)], 1).sum(0)
        mean, var, count = self.view.group.all_reduce(figures).tensor_split((x.shape[1], 2 * x.shape[1]))
        with torch.no_grad():
            running_mean.lerp_((mean / count).to(running_mean.dtype), momentum)
            running_var.lerp_((var / count).to(running_var.dtype), momentum)

    def _over_ranks(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        dtype = x.dtype
        if dtype in LOW:
            x = x.float()  # as torch's own kernels
        channels, over = x.shape[1], [d for d in range(x.dim()) if d != 1]
        shape = [1, channels] + [1] * (x.dim() - 2)
        here = x.mean(over)
        d = x - here.view(shape)
        group = self.view.group
        mine = torch.cat([x.new_full((1,), x.numel() / channels), here, (d * d).sum(over)])
        slot = x.new_zeros(group.size, 1)
        slot[group.rank] = 1  # a sum with the other ranks' zeros hands every rank's figures to all
        counts, means, squares = SumWithin.apply(slot * mine, group).split([1, channels, channels], 1)
        counts = counts.detach()
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        var = (squares + counts * (means - mean) ** 2).sum(0) / count
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_((var * count / (count - 1)).to(running_var.dtype), momentum)
        out = (d + (here - mean).view(shape)) * torch.rsqrt(var + eps).view(shape)
        if weight is not None:
            out = out * weight.view(shape)
        if bias is not None:
            out = out + bias.view(shape)
        return out.to(dtype)
