"""Nodes with a folder each, by private mounts: each has what rank 0 wrote, on its own disk."""

from __future__ import annotations

import ctypes
import glob
import os
import pickle
import shutil
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from autoddp import torch_internals
from autoddp.comm.world import World
from autoddp.effects.downloads import Downloads
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.library_files import Holders
from autoddp.effects.nodes import Nodes
from autoddp.effects.temporary import Temporary
from tests.effects.outward import installed, raised
from tests.support.ranks import run_ranks

CLONE_NEWNS = 0x20000


def sh(*line: str) -> None:
    subprocess.run(line, check=True, capture_output=True, timeout=20)


@pytest.fixture
def place():
    """A folder of a short name, as the path of a socket of a loader's worker has a limit."""
    with tempfile.TemporaryDirectory(prefix="n") as folder:
        yield Path(folder)


@pytest.fixture
def on(place):
    """`on(script)`: what it returns on each rank; rank 0 is node 0, the others are node 1."""
    if subprocess.run(
        ["unshare", "-m", "true"], capture_output=True, timeout=20, check=False
    ).returncode:
        pytest.skip("no private mounts can be made here")
    for name in ("at", "tmp", "node0", "node1", "tmp0", "tmp1"):
        (place / name).mkdir()

    def on(script: Callable[[Any], Any], nproc: int = 2, shared: bool = False) -> list[Any]:
        def rank(group):
            node = min(group.rank, 1)
            assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
            sh("mount", "--make-rprivate", "/")
            sh(
                "mount",
                "--bind",
                str(place / f"node{0 if shared else node}"),
                str(place / "at"),
            )
            sh("mount", "--bind", str(place / f"tmp{node}"), str(place / "tmp"))
            os.chdir(place / "at")
            tempfile.tempdir = str(place / "tmp")
            first = group.rank == 0
            store = (
                dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
                if first
                else None
            )
            port = group.call("the store", lambda: store.port)
            group.store = torch_internals.prefixed(
                "x", store or dist.TCPStore("localhost", port, is_master=False)
            )
            many = nproc - 1 if node else 1
            group.world = World(group.rank, nproc, max(group.rank - 1, 0), many, node_rank=node)
            with installed(group, Nodes, Files, Folders, Temporary, Holders, Downloads) as run:
                return script(run)

        return run_ranks(rank, nproc, timeout=240)

    on.folder = place
    return on


class Reads(Dataset):
    """What is in a file, read where the sample is fetched."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 2

    def __getitem__(self, at):
        return int(Path(self.path).read_text())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_each_node_has_what_was_written_and_reads_it(on, shared):
    def script(run):
        os.makedirs("a/b")
        torch.save(torch.ones(2), "a/x.pt")
        np.save("a/x.npy", np.arange(3))
        Path("a/b/text").write_text("12")
        with open("a/log", "a") as log:
            log.write("1\n")
        with open("a/log", "r+") as log:
            log.seek(0, 2)
            log.write("2\n")
        seen = [torch.load("a/x.pt", mmap=True).tolist(), np.load("a/x.npy").tolist()]
        for workers in (0, 1):
            seen += [batch.tolist() for batch in DataLoader(Reads("a/b/text"), num_workers=workers)]
        os.symlink("b/text", "a/link")
        shutil.copytree("a", "c")
        shutil.move("a/log", "c/b")
        os.rename("c", "d")
        seen += [Path(name).read_text() for name in ("a/link", "d/b/log", "d/b/text")]
        seen += [sorted(glob.glob("d/**", recursive=True)), raised(Path("a/log").read_text)]
        os.chdir("d/b")
        seen.append([os.getcwd(), Path("log").read_text()])
        os.chdir("../..")
        shutil.rmtree("d")
        thread = threading.Thread(target=lambda: Path("a/thread").write_text("t"))
        thread.start()
        thread.join()
        with sqlite3.connect("a/base") as base:
            base.execute("create table t (x)")
        base.close()
        run.group.barrier()
        return pickle.dumps([seen, Path("a/thread").read_text()])

    zero, *others = on(script, 3, shared)
    seen, _ = pickle.loads(zero)
    assert others == [zero] * 2
    assert seen[:6] == [[1.0, 1.0], [0, 1, 2], *[[12]] * 4]
    assert seen[6:9] == ["12", "1\n2\n", "12"]
    assert seen[10] == ("FileNotFoundError", "[Errno 2] No such file or directory: 'a/log'")
    zero, one = (contents(on.folder / f"node{node}") for node in (0, 1))
    assert sorted(zero) == ["a/b/text", "a/base", "a/link", "a/thread", "a/x.npy", "a/x.pt"]
    assert one == ({} if shared else zero)
    assert [list((on.folder / f"tmp{node}").iterdir()) for node in (0, 1)] == [[], []]


def test_what_is_temporary_has_one_name_on_all_nodes_and_goes_on_all(on):
    def script(run):
        folder, seen = tempfile.mkdtemp(), []
        with tempfile.TemporaryDirectory() as other:
            torch.save(torch.ones(2), f"{other}/best.pt")
            seen.append(torch.load(f"{other}/best.pt").tolist())
            with run.effects.context.internal():
                seen += [os.path.isdir(name) for name in (folder, other)]
        handle, name = tempfile.mkstemp(suffix=".bin")
        os.write(handle, b"x")
        os.close(handle)
        os.replace(name, f"{folder}/kept")
        seen.append(Path(folder, "kept").read_text())
        with tempfile.NamedTemporaryFile() as file:
            seen.append(os.path.exists(file.name))
        shutil.rmtree(folder)
        run.group.barrier()  # the rank of a node that made a folder removes it
        with run.effects.context.internal():
            return [*seen, [x for x in os.listdir(tempfile.gettempdir()) if x[:3] != "aut"]]

    assert on(script, 3) == [[[1.0, 1.0], True, True, "x", True, []]] * 3


def test_what_goes_wrong_on_a_node_alone_is_one_error_that_names_it_on_all_ranks(on):
    (on.folder / "node0/data").mkdir()
    (on.folder / "node0/old").write_text("of an earlier job")
    (on.folder / "node1/made").mkdir()

    def log():
        with open("made/log", "w") as file:
            file.write("x" * (1 << 17))

    def script(run):
        seen = [
            raised(lambda: torch.save(torch.ones(2), "data/x.pt")),
            raised(lambda: Path("data/x").write_text("x")),
            raised(lambda: os.replace("old", "new")),
            raised(lambda: os.mkdir("made")),
        ]
        with run.effects.context.internal():
            os.makedirs("made", exist_ok=True)
            if run.world.node_rank and run.world.local_rank == 0:  # no room on node 1's disk
                sh("mount", "-t", "tmpfs", "-o", "size=64k", "none", str(on.folder / "at/made"))
        return [*seen, raised(log), raised(lambda: open("none/x", "w").close())]

    zero, one, two = on(script, 3)
    assert zero == one == two
    kinds = ["RuntimeError", *["FileNotFoundError"] * 2, "FileExistsError", "OSError"]
    names = ["data/x.pt", "data/x", "new", "made", "made/log"]
    for (kind, text), inner, name in zip(zero, kinds, names, strict=False):
        assert kind == "NodeFailed", text
        said = f" of {name} went well on node 0 and not on node 1, which has a folder of its own"
        assert said in text
        assert f": {inner}: " in text
    assert zero[-1] == ("FileNotFoundError", "[Errno 2] No such file or directory: 'none/x'")
