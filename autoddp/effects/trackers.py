"""Experiment trackers: the run is rank 0's; the others hold one like it that keeps to itself."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import partial
from types import MethodType
from typing import Any, ClassVar

from torch import Tensor
from torch.utils._pytree import tree_map

from autoddp.effects.engine import Effects, Mode
from autoddp.effects.outward import Outward
from autoddp.effects.write_calls import whole
from autoddp.patching import Call, patch

# The modules that define a SummaryWriter, and the arguments that name its folder.
TENSORBOARD = {"torch.utils.tensorboard.writer": "log_dir", "tensorboardX.writer": "logdir"}
NOOP = "wandb.sdk.lib.noop_run"
NOTE = "_autoddp_note"
# What the other ranks are told of rank 0's run; what the script may set is in its settings.
TOLD = (
    *("project", "entity", "dir", "sync_dir", "path", "group", "job_type", "offline", "disabled"),
    *("start_time", "resumed", "sweep_id", "url", "project_url", "sweep_url"),
)


class Trackers(Outward):
    """The feature that keeps one run for all ranks, with one name, folder and settings."""

    name: ClassVar[str] = "trackers"
    without: ClassVar[str] = "every rank logs to TensorBoard, wandb and aim, to runs of its own"

    def setup(self, undo: ExitStack) -> None:
        """Keep the runs quiet that this rank has from a fork of rank 0."""
        for run in _begun() if self.rank else ():
            if NOTE in vars(run) and run._attach_pid != os.getpid():
                _inherited(run, self.effects)

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
        if self.rank == 0:
            self.effects.do_on_rank0(
                "SummaryWriter", call.plain, tell=lambda _: str(getattr(call.instance, argument))
            )
            return None
        theirs = self.effects.do_on_rank0("SummaryWriter", call.plain)
        given = call.named.get("logdir") or call.named.get("log_dir")
        return (
            call.plain() if given and str(given) == theirs else call.changed(**{argument: theirs})
        )

    @patch(
        *(f"{module}:FileWriter.__init__" for module in TENSORBOARD),
        why="rank 0 writes the events; others write to their scratch",
        optional=True,
    )
    def write_once(self, call: Call) -> Any:
        """Write on rank 0, elsewhere to scratch, even where rank 0 is not waited for."""
        argument = TENSORBOARD[call.target.partition(":")[0]]
        trial = self.effects.mode() is Mode.SUPPRESSED
        if not call.named or not self.effects.context.in_job() or not (self.rank or trial):
            return call.plain()
        return call.changed(**{argument: self.effects.scratch.new(str(call.named[argument]))})

    @patch(
        *(f"{module}:FileWriter.add_event" for module in TENSORBOARD),
        why="what one process would not have run logs nothing",
        optional=True,
    )
    def log_no_trial(self, call: Call) -> Any:
        """Log nothing in a trial; all else that is logged comes by here, on every rank."""
        return None if self.effects.mode() is Mode.SUPPRESSED else call.plain()

    @patch(
        *(f"{module}:SummaryWriter.{end}" for module in TENSORBOARD for end in ("flush", "close")),
        why="what was logged is there for every rank after it",
        optional=True,
    )
    def end_together(self, call: Call) -> Any:
        """Flush or close the writer; all ranks wait for rank 0's."""
        if self.effects.mode() is not Mode.SYNCED:
            return call.plain()
        if self.rank:
            with self.effects.context.internal():
                call.plain()
        return self.effects.ask_rank0(call.target.partition(":")[2], call.plain)

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
        if self.rank == 0:
            return self.effects.do_on_rank0("wandb.init", call.plain, tell=_facts)
        facts = self.effects.do_on_rank0("wandb.init", call.plain)
        with self.effects.context.internal():
            return _seconded(call, facts, self.effects)

    @patch(
        "aim.sdk.run:Run.__init__",
        why="one run: rank 0's; the others' have its hash, and a repository of their own",
        optional=True,
    )
    def track_once(self, call: Call) -> Any:
        """Begin a run of aim on rank 0; the others' are kept in scratch: one may open the files."""
        if self.effects.mode() is not Mode.SYNCED or call.named.get("read_only"):
            return call.plain()
        if self.rank == 0:
            self.effects.do_on_rank0("aim.Run", call.plain, tell=lambda _: call.instance.hash)
            return None
        theirs = self.effects.do_on_rank0("aim.Run", call.plain)
        with self.effects.context.internal():
            call.changed(
                run_hash=None,
                repo=self.effects.scratch.new("aim"),
                system_tracking_interval=None,
                log_system_params=False,
                capture_terminal_logs=False,
            )
        call.instance.hash = theirs
        return None

    @patch(
        "wandb.sdk.wandb_run:Run.log",
        "wandb.sdk.wandb_summary:SummaryDict.update",
        why="what is logged is whole; what one process would not have run logs nothing",
        optional=True,
    )
    def log_whole(self, call: Call) -> Any:
        """Log whole values: a loss is summed over ranks when it is read, by all of them."""
        mode = self.effects.mode()
        if mode is Mode.SUPPRESSED:
            return None
        if mode is Mode.SYNCED:
            args, kwargs = whole((call.args, call.kwargs))
            return call.wrapped(*args, **kwargs)
        return call.plain()

    @patch(
        "wandb.sdk.lib.disabled:SummaryDisabled.__setitem__",
        "wandb.sdk.lib.disabled:SummaryDisabled.update",
        why="the summary of a disabled run holds what rank 0's holds: numbers",
        optional=True,
    )
    def keep_numbers(self, call: Call) -> Any:
        """Keep numbers in the summary: what ranks above 0 log comes by here."""
        mode = self.effects.mode()
        if mode is Mode.SUPPRESSED:
            return None
        if mode is Mode.SYNCED:
            args, kwargs = tree_map(_number, whole((call.args, call.kwargs)))
            return call.wrapped(*args, **kwargs)
        return call.plain()


def _facts(run: Any) -> dict[str, Any]:
    """Return facts of rank 0's run that the script may ask for, and that do not change."""
    # offline, wandb warns of asking for the last three
    named = TOLD[:-3] if run.offline or run.disabled else TOLD
    facts = {name: getattr(run, name, None) for name in named}
    return {**facts, "id": run.id, "name": run.name, "step": run.step}


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _told(facts: dict[str, Any], name: str, run: Any) -> Any:
    return facts.get(name)


def _seconded(call: Call, facts: dict[str, Any], effects: Effects) -> Any:
    """Return a run that answers as rank 0's, and logs nothing."""
    wandb = sys.modules["wandb"]
    if wandb.run is not None and wandb.run.id == facts["id"]:
        return wandb.run  # rank 0 has got its run again, too
    return _answering(call.changed(mode="disabled", id=facts["id"]), facts, effects)


def note_runs() -> None:
    """Note on each run that goes on what its forks shall answer: it cannot be asked there."""
    for run in _begun():
        vars(run)[NOTE] = _facts(run), dict(run.summary), run.config.as_dict()


def _begun() -> list[Any]:
    setting_up = sys.modules.get("wandb.sdk.wandb_setup") if NOOP in sys.modules else None
    return list(getattr(getattr(setting_up, "_singleton", None), "_active_runs", ()))


def _inherited(run: Any, effects: Effects) -> None:
    """Make a run that is rank 0's, and was begun before this rank was forked, keep to itself.

    It stays the same object, since the script has it.
    """
    wandb: Any = sys.modules["wandb"]
    current = wandb.run is run
    facts, summary, config = vars(run)[NOTE]
    settings = run._settings.model_copy(update={"mode": "disabled"})
    made = _answering(sys.modules[NOOP].init_noop_run(settings, config), facts, effects)
    made.summary.update(summary)
    run.__class__ = type(made)
    vars(run).clear()
    vars(run).update(vars(made))
    if current:
        wandb.run = run
        _speak_for(made, run)


def _answering(run: Any, facts: dict[str, Any], effects: Effects) -> Any:
    """Give a disabled run the answers of rank 0's."""
    wandb = sys.modules["wandb"]
    run._settings.run_name = facts["name"]
    run._step, run._torch_history = facts["step"], None
    plain = type(run)
    answers = {name: property(partial(_told, facts, name)) for name in TOLD}

    def log(
        self: Any, data: Any, step: int | None = None, commit: bool | None = None, **_: Any
    ) -> None:
        if effects.mode() is Mode.SUPPRESSED:
            return
        plain.log(self, data)
        if step is not None:
            self._step = max(self._step, step) + bool(commit)
        elif commit is not False:
            self._step += 1

    watching = {name: getattr(wandb.sdk.wandb_run.Run, name) for name in ("watch", "unwatch")}
    run.__class__ = type(
        plain.__name__,
        (plain,),
        {
            **answers,
            **watching,  # hooks change how a model is run: all ranks have them
            "_log": lambda *_, **__: None,
            "log": log,
            "step": property(lambda self: self._step),
            "__module__": plain.__module__,
        },
    )
    _speak_for(run, run)
    return run


def _speak_for(before: Any, run: Any) -> None:
    """Bind the functions of the package that are methods of `before` to `run`."""
    wandb = sys.modules["wandb"]
    for name, value in list(vars(wandb).items()):
        if isinstance(value, MethodType) and value.__self__ is before:
            setattr(wandb, name, getattr(run, name))
