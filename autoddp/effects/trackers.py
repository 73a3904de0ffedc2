"""Experiment trackers: rank 0 logs a run; the runs of other ranks are disabled or offline.

TensorBoard needs no patch: it writes by Python's `open`, and reads rank 0's clock.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, ClassVar

from torch import Tensor
from torch.utils._pytree import tree_map

from autoddp.effects.effect_feature import EffectFeature
from autoddp.effects.ownership import whose
from autoddp.effects.who_acts import Mode
from autoddp.effects.write_calls import whole
from autoddp.patching import Call, patch

NOOP = "wandb.sdk.lib.noop_run"
# Constructors of runs, with arguments that disable a run on ranks above 0, or make it private.
OFF: dict[str, dict[str, Any]] = {
    "comet_ml.experiment:CometExperiment.__init__": {"disabled": True},
    "aim.sdk.run:Run.__init__": {
        "repo": None,  # replaced by a private folder, as only one process may open a repository
        **{"run_hash": None, "system_tracking_interval": None, "capture_terminal_logs": False},
    },
}


class Trackers(EffectFeature):
    """The feature that logs one run for all ranks, with one name, folder and settings."""

    name: ClassVar[str] = "trackers"
    without: ClassVar[str] = "every rank logs a run of its own to wandb, comet and aim"

    @patch(
        *("wandb:init", "wandb.sdk:init", "wandb.sdk.wandb_init:init"),
        why="rank 0 logs the run; other ranks get a disabled one of its name, folder and settings",
        optional=True,
    )
    def run_once(self, call: Call) -> Any:
        """Start a run on rank 0, and disabled runs on the others, whoever calls."""
        mode, noop = self.effects.mode(), sys.modules.get(NOOP)
        # without `noop`, the module is not the tracker `wandb`
        if noop is None or not call.named or mode is not Mode.SYNCED:
            return call.plain()

        def parts(run: Any) -> list[Any]:
            return [run.settings, run.config.as_dict()]

        started = self.effects.do_on_rank0("wandb.init", call.plain, parts)
        if self.rank == 0:
            return started
        settings, config = started
        current = sys.modules["wandb"].run
        same = current is not None and current.id == settings.run_id  # as on rank 0
        return current if same else noop.init_noop_run(settings, config)

    @patch(*OFF, why="rank 0 logs the run; other ranks disable theirs", optional=True)
    def disable(self, call: Call) -> Any:
        """Start a run on rank 0, and disabled or private runs on the others."""
        if self.rank == 0 or self.effects.mode() is not Mode.SYNCED or not call.named:
            return call.plain()
        disabled = {**OFF[call.target]}
        if "repo" in disabled:
            disabled["repo"] = self.effects.overlay.new("repo")
        with self.context.internal():
            return call.changed(**disabled)

    @patch(
        *("wandb.sdk.wandb_run:Run.step", "wandb.sdk.lib.noop_run:NoopRun.step"),
        why="all ranks get rank 0's number of the step",
        hot=True,
        optional=True,
    )
    def count(self, original: Any) -> Any:
        """Make the property `step` return rank 0's value."""

        def step(run: Any) -> Any:
            read = partial(original.fget, run)
            agreed = self.effects.mode(by=whose) is Mode.SYNCED
            return self.effects.ask_rank0("the step", read) if agreed else read()

        return property(step)

    @patch(
        *(f"{NOOP}:NoopRun.{method}" for method in ("watch", "unwatch", "_log")),
        why="gradients are read on all ranks, or on none; only rank 0 logs them",
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
        why="logged tensors are gathered, and those of one element become numbers, on all ranks",
        optional=True,
    )
    def log_whole(self, call: Call) -> Any:
        """Log gathered values: all ranks read a loss, as reading is an all-reduce."""
        if self.effects.mode() is not Mode.SYNCED:
            return call.plain()
        args, kwargs = tree_map(_number, whole((call.args, call.kwargs)))
        return call.wrapped(*args, **kwargs)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
