"""Experiment trackers: the run is rank 0's, and those of the others are disabled or offline.

TensorBoard needs nothing of this: it writes by Python's `open`, and reads rank 0's clock.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, ClassVar

from torch import Tensor
from torch.utils._pytree import tree_map

from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.write_calls import whole
from autoddp.patching import Call, patch

NOOP = "wandb.sdk.lib.noop_run"
# Constructors of runs, and the arguments that disable a run on ranks above 0, or keep it private.
OFF: dict[str, dict[str, Any]] = {
    "comet_ml.experiment:CometExperiment.__init__": {"disabled": True},
    "aim.sdk.run:Run.__init__": {
        "repo": None,  # replaced by a private folder: only one process may open a repository
        **{"run_hash": None, "system_tracking_interval": None, "capture_terminal_logs": False},
    },
}


class Trackers(Outward):
    """The feature that keeps one run for all ranks, with one name, folder and settings."""

    name: ClassVar[str] = "trackers"
    without: ClassVar[str] = "every rank logs to wandb, comet and aim, to runs of its own"

    @patch(
        *("wandb:init", "wandb.sdk:init", "wandb.sdk.wandb_init:init"),
        why="one run: rank 0's; the others' are disabled, and have its name, folder and settings",
        optional=True,
    )
    def run_once(self, call: Call) -> Any:
        """Start a run on rank 0, for any caller; the others' are disabled."""
        mode, noop = self.effects.mode(), sys.modules.get(NOOP)
        if (
            noop is None or not call.named or mode is not Mode.SYNCED
        ):  # a module that is another `wandb`
            return call.plain()

        def parts(run: Any) -> list[Any]:
            return [run.settings, run.config.as_dict()]

        begun = self.effects.do_on_rank0("wandb.init", call.plain, parts)
        if self.rank == 0:
            return begun
        settings, config = begun
        known = sys.modules["wandb"].run
        again = known is not None and known.id == settings.run_id  # as on rank 0
        return known if again else noop.init_noop_run(settings, config)

    @patch(*OFF, why="one run: rank 0's; the others' are disabled or offline", optional=True)
    def keep_apart(self, call: Call) -> Any:
        """Start a run on rank 0; the others' are disabled or private."""
        if self.rank == 0 or self.effects.mode() is not Mode.SYNCED or not call.named:
            return call.plain()
        given = {**OFF[call.target]}
        if "repo" in given:
            given["repo"] = self.effects.overlay.new("repo")
        with self.context.internal():
            return call.changed(**given)

    @patch(
        *("wandb.sdk.wandb_run:Run.step", "wandb.sdk.lib.noop_run:NoopRun.step"),
        why="the number of the step is rank 0's, whatever the script makes of it",
        hot=True,
        optional=True,
    )
    def count(self, original: Any) -> Any:
        """Make the property `step` return rank 0's value."""

        def step(run: Any) -> Any:
            read = partial(original.fget, run)
            agreed = self.effects.touch() is Mode.SYNCED
            return self.effects.ask_rank0("the step", read) if agreed else read()

        return property(step)

    @patch(
        *(f"{NOOP}:NoopRun.{of}" for of in ("watch", "unwatch", "_log")),
        why="gradients are read on all ranks or on none; what a watch has read, rank 0 alone logs",
        optional=True,
    )
    def watch_alike(self, call: Call) -> Any:
        """Watch a model as rank 0 does, if its run is not disabled by the script."""
        name = call.target.rpartition(".")[2]
        if name == "_log" or call.instance.settings.mode == "disabled":
            return None
        run = sys.modules["wandb.sdk.wandb_run"].Run
        return getattr(run, name)(call.instance, *call.args, **call.kwargs)

    @patch(
        *("wandb.sdk.wandb_run:Run.log", "wandb.sdk.lib.noop_run:NoopRun.log"),
        "wandb.sdk.wandb_summary:SummaryDict.update",
        "wandb.sdk.lib.disabled:SummaryDisabled.__setitem__",
        "wandb.sdk.lib.disabled:SummaryDisabled.update",
        why="what is logged is whole, and one number is a number; a disabled run keeps it, too",
        optional=True,
    )
    def log_whole(self, call: Call) -> Any:
        """Log whole values: all ranks read a loss, which sums it."""
        if self.effects.mode() is not Mode.SYNCED:
            return call.plain()
        args, kwargs = tree_map(_number, whole((call.args, call.kwargs)))
        return call.wrapped(*args, **kwargs)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
