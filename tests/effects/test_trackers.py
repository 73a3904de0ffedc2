"""TensorBoard and wandb on 2 and 3 ranks: one run, one file of events, the same answers for all."""

from __future__ import annotations

import glob
import importlib
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from autoddp.effects.clocks import Clocks
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.library_files import Holders
from autoddp.effects.temporary import Temporary
from autoddp.effects.trackers import Trackers
from tests.effects.outward import on_ranks
from tests.effects.test_who_writes import SEEN, watch
from tests.support.cli import fork_cli

FEATURES = (Clocks, Files, Folders, Temporary, Holders, Trackers)
MODULES = ("torch.utils.tensorboard", "tensorboardX")


def events(folder):
    """Tags and values of all scalars below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = {}
    for path in sorted(glob.glob(f"{folder}/**/events*", recursive=True)):
        read = EventAccumulator(path).Reload()
        for tag in read.Tags()["scalars"]:
            seen.setdefault(tag, []).extend((e.step, e.value) for e in read.Scalars(tag))
    return seen


def logged(module):
    """A script that logs to a folder without a name."""

    def script(run):
        SummaryWriter = import_module(module).SummaryWriter
        writer = SummaryWriter(comment="-named")
        for step in range(3):
            writer.add_scalar("loss", step / 2 + run.world.rank, step)
        writer.add_image("it", torch.zeros(3, 4, 4))
        writer.flush()
        folder = str(writer.log_dir if hasattr(writer, "log_dir") else writer.logdir)
        early = events(folder)
        writer.add_hparams({"lr": 0.1}, {"best": 1.0})
        writer.close()
        named = SummaryWriter("here")
        named.add_scalar("x", 1.0, 0)
        named.close()
        return folder, early, events(folder), events("here"), SEEN

    return script


@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("module", MODULES)
def test_tensorboard_has_one_file_of_events(tmp_path, module, nproc):
    if not find_spec("tensorboard") or not find_spec(module.partition(".")[0]):
        pytest.skip(f"{module} is not installed")
    first, *others = on_ranks(
        logged(module), nproc, *FEATURES, folder=tmp_path, before=lambda rank: watch(tmp_path)
    )
    assert all(other[:4] == first[:4] for other in others)
    assert [other[4] for other in others] == [[]] * (nproc - 1)
    folder, early, late, named, _ = first
    assert folder.endswith("-named")
    assert early == {"loss": [(0, 0.0), (1, 0.5), (2, 1.0)]}
    assert late == early | {"best": [(0, 1.0)]}
    assert named == {"x": [(0, 1.0)]}
    assert len(os.listdir(tmp_path / "runs")) == 1
    assert len(glob.glob(f"{tmp_path}/{folder}/events*")) == 1
    assert sorted(os.listdir(tmp_path)) == ["here", "runs"]


def tracked(run):
    """A script that logs to wandb, offline."""
    os.environ |= {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
    import wandb
    from wandb.sdk.data_types import _private, image

    # as in a script: its folder for pictures is made inside the job, not by whatever test imported
    # it first
    image.MEDIA_TMP = importlib.reload(_private).MEDIA_TMP
    it = wandb.init(
        project="p", config={"lr": run.world.rank}, settings=wandb.Settings(silent=True)
    )
    model = torch.nn.Linear(2, 1)
    wandb.watch(model, log="all", log_freq=1)
    for step in range(3):
        model(torch.ones(1, 2)).sum().backward()
        wandb.log({"loss": step})
    it.log({"it": wandb.Image(torch.zeros(3, 4, 4).numpy().transpose(1, 2, 0))})
    wandb.config.update({"epochs": 2})
    answers = [
        it.id,
        it.name,
        it.dir,
        it.project,
        it.group,
        it.path,
        it.offline,
        it.disabled,
        it.step,
    ]
    same = wandb.run is it and wandb.init(project="p") is it
    hooks = len(model._forward_hooks)
    Path(it.dir, "note.txt").write_text("by the script")
    summary = it.summary["loss"]
    wandb.save("nothing-*")
    wandb.finish()
    kind = isinstance(it, wandb.sdk.wandb_run.Run)
    return answers, same, hooks, summary, kind, wandb.run is None, it.config["epochs"], SEEN


@pytest.mark.parametrize("nproc", [2, 3])
def test_wandb_has_one_run(tmp_path, nproc):
    if not find_spec("wandb"):
        pytest.skip("wandb is not installed")
    first, *others = on_ranks(
        tracked, nproc, *FEATURES, folder=tmp_path, before=lambda rank: watch(tmp_path)
    )
    assert all(other[:7] == first[:7] for other in others)
    assert [other[7] for other in others] == [[]] * (nproc - 1)
    answers, same, hooks, summary, kind, ended, epochs, _ = first
    assert answers[3:] == ["p", "", f"p/{answers[0]}", True, False, 4]
    assert (same, hooks, summary, kind, ended, epochs) == (True, 1, 2, True, True, 2)
    runs = glob.glob(f"{tmp_path}/wandb/offline-run-*/*.wandb")
    assert [os.path.basename(path) for path in runs] == [f"run-{answers[0]}.wandb"]
    assert answers[2] == f"{os.path.dirname(runs[0])}/files"
    assert Path(answers[2], "note.txt").read_text() == "by the script"
    assert len(glob.glob(f"{answers[2]}/media/images/*.png")) == 1
    assert os.listdir(tmp_path) == ["wandb"]


def test_a_module_of_the_scripts_that_is_named_as_a_tracker_is_left_alone(tmp_path):
    (tmp_path / "wandb.py").write_text("def init(**given):\n    return given\n")
    (tmp_path / "s.py").write_text("import wandb\nprint(wandb.init(project='x'))\n")
    done = fork_cli("run", "-q", "-n", "2", "s.py", cwd=tmp_path)
    assert (done.rc, done.out) == (0, "{'project': 'x'}\n"), done.err


AIM = '''
import ctypes, uuid

class Run:
    """As aim's: its files may be opened once, by C code, and its name is drawn."""

    def __init__(self, run_hash=None, *, repo=None, read_only=False, system_tracking_interval=10,
                 log_system_params=False, capture_terminal_logs=True):
        self.repo, self.read_only = str(repo or "."), read_only
        self.watched = bool(system_tracking_interval or capture_terminal_logs)
        self.hash = run_hash or uuid.uuid4().hex
        if not read_only and ctypes.CDLL(None).mkdir(f"{self.repo}-lock".encode(), 0o700):
            raise RuntimeError(f"{self.repo} is locked")
'''


def test_a_run_of_aim_is_rank_0s(tmp_path, monkeypatch):
    """By a module that behaves so, as aim's packages are large."""
    (tmp_path / "aim" / "sdk").mkdir(parents=True)
    (tmp_path / "aim" / "sdk" / "run.py").write_text(AIM)
    monkeypatch.syspath_prepend(tmp_path)

    def script(run):
        Run = import_module("aim.sdk.run").Run
        made = Run(repo="here")
        again = Run(made.hash, repo="here", read_only=True)
        return made.hash, again.hash, again.repo, made.repo == "here", made.watched

    zero, *others = on_ranks(script, 3, *FEATURES, folder=tmp_path)
    assert zero == (zero[0], zero[0], "here", True, True)
    assert [other[3:] for other in others] == [(False, False)] * 2
    assert (tmp_path / "here-lock").is_dir()


def test_an_experiment_of_comet_is_disabled_but_on_rank_0(tmp_path, monkeypatch):
    """By a module that takes its arguments."""
    (tmp_path / "comet_ml").mkdir()
    (tmp_path / "comet_ml" / "experiment.py").write_text(
        "class CometExperiment:\n"
        "    def __init__(self, project_name=None, disabled=False):\n"
        "        self.disabled = disabled\n"
        "class Online(CometExperiment):\n"
        "    def __init__(self, **more):\n"
        "        super().__init__(**more)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def script(run):
        return import_module("comet_ml.experiment").Online(project_name="x").disabled

    assert on_ranks(script, 3, *FEATURES, folder=tmp_path) == [False, True, True]
