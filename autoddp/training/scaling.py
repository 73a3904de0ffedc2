"""A batch that grows with the ranks, and a learning rate that goes with it, where the user asks."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, SequentialSampler

from autoddp.patching import Call, Feature, patch
from autoddp.report import users_line

if TYPE_CHECKING:
    from autoddp.effects.run import Run

INIT = inspect.signature(DataLoader.__init__)


class Scaling(Feature):
    """The options `--batch per-rank` and `--scale-lr`, which change the training on purpose."""

    name = "scaling"
    without = "--batch per-rank and --scale-lr change nothing"

    def __init__(self, run: Run) -> None:
        self.run, ranks = run, run.world.world_size
        self.grows = run.options.batch == "per-rank"
        self.factor = {"none": 1.0, "linear": float(ranks), "sqrt": ranks**0.5}[
            run.options.scale_lr
        ]

    @patch(
        "torch.utils.data:DataLoader.__init__",
        why="--batch per-rank: training batches N times as large",
    )
    def grow_batches(self, call: Call) -> Any:
        """Multiply the batch size of training loaders: with shuffle or a sampler not sequential."""
        given = INIT.bind(call.instance, *call.args, **call.kwargs).arguments
        sampler = given.get("sampler")
        trains = given.get("shuffle") or (
            sampler is not None and not isinstance(sampler, SequentialSampler)
        )
        size = given.get("batch_size", 1)
        here = self.run.view.context.is_rank()
        if not (self.grows and here and trains and isinstance(size, int)):
            return call.plain()
        del given["self"]
        given["batch_size"] = size * self.run.world.world_size
        self.run.report.say_once(
            "scaling",
            f"DataLoader at {users_line()}",
            f"batches of {given['batch_size']} instead of {size}",
        )
        return call.wrapped(**given)

    @patch(
        "torch.optim:Optimizer.add_param_group",
        why="--scale-lr: a learning rate for the larger batch",
    )
    def scale_group(self, call: Call) -> Any:
        """Scale the learning rate of a group, its own or the default: every group comes here."""
        optimizer = call.instance
        group = call.args[0] if call.args else call.kwargs.get("param_group")
        if self.factor == 1 or not self.run.view.context.is_rank() or not isinstance(group, dict):
            return call.plain()
        rate = group.get("lr", optimizer.defaults.get("lr"))
        if rate is None:
            return call.plain()
        self.run.report.say_once(
            "scaling",
            f"{type(optimizer).__name__} at {users_line()}",
            f"learning rate times {self.factor:g}",
        )
        return call.wrapped({**group, "lr": rate * self.factor})
