"""Audit events show that only rank 0 changes the disk, once for each effect."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from tests.effects.outward import on_ranks

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink")
SEEN: list[str] = []  # of this process: each rank is a fork


def watch(folder: Path) -> None:
    """Record the changes of this process below `folder` by an audit hook, which stays installed."""

    def hook(event, args):
        if event == "open" and (not isinstance(args[2], int) or not args[2] & WRITING):
            return
        if event in ("os.remove", "os.rmdir") and args[1] != -1:
            return  # a name in an open folder: rmtree, clearing away a rank's own scratch
        if (event == "open" or event in CHANGES) and str(args[0]):
            path = os.path.abspath(os.fsdecode(args[0])) if not isinstance(args[0], int) else ""
            if path.startswith(str(folder) + "/"):
                SEEN.append(f"{event} {os.path.relpath(path, folder)}")

    sys.addaudithook(hook)


def script(run):
    os.makedirs("runs/one")
    torch.save({"a": torch.ones(3)}, "runs/one/net.pt")
    np.save("runs/one/curve.npy", np.arange(3))
    with open("runs/log.csv", "a") as log:
        log.write("1,2\n")
    Path("runs/note.txt").write_text("done")
    shutil.copyfile("runs/one/net.pt", "runs/best.pt")
    os.replace("runs/note.txt", "runs/said.txt")
    os.remove("runs/said.txt")
    return list(SEEN)


@pytest.mark.parametrize("nproc", [2, 3])
def test_only_rank_0_changes_the_folder(nproc, tmp_path):
    first, *others = on_ranks(
        script, nproc, Files, Folders, folder=tmp_path, before=lambda rank: watch(tmp_path)
    )
    assert others == [[]] * (nproc - 1)
    for what in ("os.mkdir runs", "os.mkdir runs/one", "open runs/log.csv", "open runs/note.txt"):
        assert first.count(what) == 1
    assert first.count("os.rename runs/note.txt") == first.count("os.remove runs/said.txt") == 1
    assert sum(seen.startswith("os.rename runs/one/") for seen in first) == 2  # put in place, whole
    assert (tmp_path / "runs/log.csv").read_text() == "1,2\n"
