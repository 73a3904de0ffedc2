"""Experiment trackers: the run is rank 0's; the others' is wandb's own disabled one.

TensorBoard writes by Python's `open`, which the overlay keeps apart: only its folder needs a name.
"""

from __future__ import annotations

import pickle
import sys
from contextlib import ExitStack
from typing import Any, ClassVar

from torch import Tensor
from torch.utils._pytree import tree_map

from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.write_calls import whole
from autoddp.patching import Call, patch

# The modules that define a SummaryWriter, and the arguments that name its folder.
TENSORBOARD = {"torch.utils.tensorboard.writer": "log_dir", "tensorboardX.writer": "logdir"}
NOOP = "wandb.sdk.lib.noop_run"


class Trackers(Outward):
    """The feature that keeps one run for all ranks, with one name, folder and settings."""

    name: ClassVar[str] = "trackers"
    without: ClassVar[str] = "every rank logs to wandb and aim, to runs of its own"

    def setup(self, undo: ExitStack) -> None:
        """Keep what undoes our changes of wandb's class of disabled runs."""
        super().setup(undo)
        self._undo, self._counts = undo, False

    @patch(
        *(f"{module}:SummaryWriter.__init__" for module in TENSORBOARD),
        why="ranks log to one folder: where it has no name, or the time in it, "
        "the name is rank 0's",
        optional=True,
    )
    def name_once(self, call: Call) -> Any:
        """Name the folder as rank 0 does, whoever calls: `add_hparams` makes its own writer."""
        argument = TENSORBOARD[call.target.partition(":")[0]]
        if self.effects.mode() is not Mode.SYNCED or not call.named:
            return call.plain()
        made = self.effects.do_on_rank0(
            "SummaryWriter", call.plain, tell=lambda _: str(getattr(call.instance, argument))
        )
        with self.effects.unsynced():
            return call.changed(**{argument: made}) if self.rank else None

    @patch(
        "wandb:init",
        "wandb.sdk:init",
        "wandb.sdk.wandb_init:init",
        why="one run: rank 0's; the others' are disabled, and have its name, folder and settings",
        optional=True,
    )
    def run_once(self, call: Call) -> Any:
        """Begin a run on rank 0, whoever calls; the others' are disabled."""
        mode = self.effects.mode()
        if not call.named and (call.args or call.kwargs):
            return call.plain()  # words what is wrong with its arguments
        if NOOP not in sys.modules:  # another module of this name, such as a script's stand-in
            return call.plain()
        if mode is Mode.PASS_THROUGH or (self.rank == 0 and mode is Mode.UNSYNCED):
            return call.plain()
        if mode is not Mode.SYNCED:
            with self.effects.context.internal():
                return call.changed(mode="disabled")
        begun = self.effects.do_on_rank0("wandb.init", call.plain, tell=_facts)
        return begun if self.rank == 0 else self._disabled(*pickle.loads(begun))

    @patch(
        "aim.sdk.run:Run.__init__",
        why="one run: rank 0's; the others' have its hash, and a repository of their own",
        optional=True,
    )
    def track_once(self, call: Call) -> Any:
        """Begin a run of aim on rank 0; the others' are kept in scratch: one may open the files."""
        if self.effects.mode() is not Mode.SYNCED or call.named.get("read_only"):
            return call.plain()
        theirs = self.effects.do_on_rank0("aim.Run", call.plain, tell=lambda _: call.instance.hash)
        if self.rank:
            with self.effects.context.internal():
                call.changed(
                    run_hash=None,
                    repo=self.effects.overlay.new("aim"),
                    system_tracking_interval=None,
                    log_system_params=False,
                    capture_terminal_logs=False,
                )
            call.instance.hash = theirs
        return None

    @patch(
        "wandb.sdk.lib.noop_run:NoopRun.log",
        why="the number of the step is rank 0's, whatever the script makes of it",
        optional=True,
    )
    def count(self, call: Call) -> Any:
        """Count the steps of a disabled run, as wandb counts those of a real one."""
        step, commit = call.kwargs.get("step"), call.kwargs.get("commit")
        before = call.instance._step
        again = commit if step is not None else commit is not False
        call.instance._step = max(before, step or 0) + bool(again)
        return call.plain()

    @patch(
        "wandb.sdk.wandb_run:Run.log",
        "wandb.sdk.wandb_summary:SummaryDict.update",
        "wandb.sdk.lib.disabled:SummaryDisabled.__setitem__",
        "wandb.sdk.lib.disabled:SummaryDisabled.update",
        why="what is logged is whole, and one number is a number; a disabled run keeps it, too",
        optional=True,
    )
    def log_whole(self, call: Call) -> Any:
        """Log whole values: a loss is summed over ranks when it is read, by all of them."""
        mode = self.effects.mode()
        if mode is Mode.SYNCED:
            args, kwargs = tree_map(_number, whole((call.args, call.kwargs)))
            return call.wrapped(*args, **kwargs)
        return call.plain()

    def _disabled(self, settings: Any, config: dict[str, Any]) -> Any:
        """Return a disabled run with the settings of rank 0's, which counts steps and has hooks."""
        wandb, noop = sys.modules["wandb"], sys.modules[NOOP]
        if wandb.run is not None and wandb.run.id == settings.run_id:
            return wandb.run  # rank 0 has got its run again, too
        run, disabled = wandb.sdk.wandb_run.Run, noop.NoopRun
        more = {"watch": run.watch, "unwatch": run.unwatch, "_log": _nothing}
        more["step"] = property(lambda disabled: disabled._step)
        plain = self._counts or settings.mode == "disabled"  # so is rank 0's
        for name, value in () if plain else more.items():
            if name in vars(disabled):
                self._undo.callback(setattr, disabled, name, vars(disabled)[name])
            else:
                self._undo.callback(delattr, disabled, name)
            setattr(disabled, name, value)
        self._counts = not plain or self._counts
        return noop.init_noop_run(settings, config)


def _nothing(*_: Any, **__: Any) -> None:
    """Log nothing that a hook of `watch` has found."""


def _facts(run: Any) -> bytes:
    return pickle.dumps([run.settings, run.config.as_dict()])


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
