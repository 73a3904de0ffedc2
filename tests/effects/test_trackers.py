"""TensorBoard and wandb on 2 and 3 ranks: one run, one file of events, equal results."""

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
        return folder, early, events(folder), SEEN

    return script


@pytest.mark.parametrize("module", MODULES)
def test_tensorboard_has_one_file_of_events(tmp_path, module):
    if not find_spec("tensorboard") or not find_spec(module.partition(".")[0]):
        pytest.skip(f"{module} is not installed")
    first, *others = on_ranks(
        logged(module), 2, *FEATURES, folder=tmp_path, before=lambda rank: watch(tmp_path)
    )
    assert all(other[:3] == first[:3] for other in others)
    assert [other[3] for other in others] == [[]]
    folder, early, late, _ = first
    assert folder.endswith("-named")
    assert early == {"loss": [(0, 0.0), (1, 0.5), (2, 1.0)]}
    assert late == early | {"best": [(0, 1.0)]}
    assert len(os.listdir(tmp_path / "runs")) == 1
    assert len(glob.glob(f"{tmp_path}/{folder}/events*")) == 1


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
    answers = [it.id, it.name, it.dir, it.project, it.path, it.offline, it.disabled, it.step]
    same = wandb.run is it and wandb.init(project="p") is it
    Path(it.dir, "note.txt").write_text("by the script")
    found = same, len(model._forward_hooks), it.summary["loss"], it.config["epochs"]
    wandb.finish()
    return answers, found, wandb.run is None, SEEN


def test_wandb_has_one_run(tmp_path):
    if not find_spec("wandb"):
        pytest.skip("wandb is not installed")
    first, *others = on_ranks(
        tracked, 3, *FEATURES, folder=tmp_path, before=lambda rank: watch(tmp_path)
    )
    assert all(other[:3] == first[:3] for other in others)
    assert [other[3] for other in others] == [[]] * 2
    answers, found, ended, _ = first
    assert answers[3:] == ["p", f"p/{answers[0]}", True, False, 4]
    assert (found, ended) == ((True, 1, 2, 2), True)
    runs = glob.glob(f"{tmp_path}/wandb/offline-run-*/*.wandb")
    assert [os.path.basename(path) for path in runs] == [f"run-{answers[0]}.wandb"]
    assert answers[2] == f"{os.path.dirname(runs[0])}/files"
    assert Path(answers[2], "note.txt").read_text() == "by the script"
    assert len(glob.glob(f"{answers[2]}/media/images/*.png")) == 1
    assert os.listdir(tmp_path) == ["wandb"]
