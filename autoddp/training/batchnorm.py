"""BatchNorm inside a split call takes its statistics over the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp.comm.context import Code
from autoddp.patching import Feature, patch
from autoddp.training import normalization
from autoddp.training.batch_stats import LOW
from autoddp.training.layouts import keep_layout
from autoddp.training.normalization import Normalize, follow
from autoddp.view import Rows, View, split

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class BatchNorm(Feature):
    """BatchNorm over all ranks' rows: statistics gathered once in forward, two sums in backward.

    The statistics are each rank's count, mean and variance. No module changes its type. Of a
    function below torch.compile traces one of two variants, by `view.region`: that of a split call
    or the plain one.
    """

    name = "batchnorm"
    without = "each rank normalizes by the statistics of its own rows"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.view, self.exact = run.view, run.options.batchnorm == "exact"

    def setup(self, undo: ExitStack) -> None:
        """Make the group known to operators in compiled graphs, which know no view."""
        normalization.meet(self.view.group, undo)

    @patch(
        "torch.nn.functional:batch_norm",
        why="statistics over the whole batch, where a rank holds rows of it",
        hot=True,
    )
    def batch_norm(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replace batch_norm by a plain function, since torch.compile looks into it."""
        view, exact = self.view, self.exact

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
            if torch.compiler.is_compiling():
                if view.region is None or not training or not exact:
                    return plain(input, *given, training, momentum, eps)
                return _compiled(input, *given, momentum, eps)
            if not view.context.is_script():
                return plain(input, *given, training, momentum, eps)
            if not training:
                return _evaluated(view, plain, input, *given, False, momentum, eps)
            if view.context.depth[Code.PROOF]:
                # what remains must be row-wise: statistics as in eval
                view.noted(input)
                zero, one = input.new_zeros(input.shape[1]), input.new_ones(input.shape[1])
                mean, var = (zero, one) if running_mean is None else (running_mean, running_var)
                return plain(input, mean, var, weight, bias, False, momentum, eps)
            over = (weight, bias, (running_mean, running_var, momentum), eps, view.group)
            if split(input) and input.at == 0 and exact:
                return Rows(Normalize.apply(input.local, *over), input.cuts)
            if view.region is not None and exact:
                return Normalize.apply(input, *over)
            return plain(input, *given, training, momentum, eps)

        return batch_norm

    @patch(
        "torch.nn.functional:instance_norm",
        why="its running statistics follow the whole batch, where a rank holds rows of it",
        hot=True,
    )
    def instance_norm(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Normalize each row by itself; running statistics follow all rows of the batch."""
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
            if running_mean is None or running_var is None or not use_input_stats or not self.exact:
                return plain(input, *given)
            if torch.compiler.is_compiling():
                if view.region is not None:
                    add_up = torch.ops.autoddp.add_up
                    _follow(input.detach(), running_mean, running_var, momentum, add_up)
                    return plain(input, None, None, *given[2:])
                return plain(input, *given)
            if not view.context.is_script():
                return plain(input, *given)
            by_rows = split(input) and input.at == 0
            if not by_rows and not view.context.on_rows():
                return plain(input, *given)
            x = input.local if split(input) else input
            if view.context.depth[Code.PROOF]:
                view.noted(x)
            else:
                _follow(x.detach(), running_mean, running_var, momentum, view.group.all_reduce)
            out = plain(x, None, None, *given[2:])
            return Rows(out, input.cuts) if split(input) else out

        return instance_norm


def _evaluated(view: View, plain: Callable[..., Tensor], x: Tensor, *given: Any) -> Tensor:
    """Normalize by given statistics, of rows as one process does of the whole."""
    if split(x) and x.at == 0:
        return Rows(keep_layout(x.local, plain(x.local, *given)), x.cuts)
    out = plain(x, *given)
    return out if view.region is None else keep_layout(x, out)


def _compiled(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Normalize in a compiled graph, by an operator that a compiler does not look into."""
    out, mean, invstd, counts = torch.ops.autoddp.normalize(x, weight, bias, eps)
    follow((running_mean, running_var, momentum), mean, invstd.pow(-2) - eps, counts.sum())
    return out


def _follow(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    add_up: Callable[[Tensor], Tensor],
) -> None:
    """Move running statistics towards the mean over all rows of each row's mean and variance."""
    if x.dtype in LOW:
        x = x.float()
    over = list(range(2, x.dim()))
    figures = torch.cat([x.mean(over), x.var(over), x.new_ones(len(x), 1)], 1).sum(0)
    mean, var, count = add_up(figures).tensor_split((x.shape[1], 2 * x.shape[1]))
    with torch.no_grad():
        running_mean.lerp_((mean / count).to(running_mean.dtype), momentum)
        running_var.lerp_((var / count).to(running_var.dtype), momentum)
