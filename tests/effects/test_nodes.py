"""Nodes with a folder each, by private mounts: each has the files of rank 0 on its own disk."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

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
    """A folder with a short name, as paths of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="n") as folder:
        yield Path(folder)


@pytest.fixture
def on(place):
    """`on(script)`: the results of all ranks; rank 0 is node 0, the others are node 1."""
    if subprocess.run(
        ["unshare", "-m", "true"], capture_output=True, timeout=20, check=False
    ).returncode:
        pytest.skip("no private mounts can be made here")
    for name in ("at", "tmp", "node0", "node1", "tmp0", "tmp1"):
        (place / name).mkdir()

    def on(script: Callable[[Any], Any], nproc: int = 2) -> list[Any]:
        def rank(group):
            node = min(group.rank, 1)
            assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
            sh("mount", "--make-rprivate", "/")
            sh(
                "mount",
                "--bind",
                str(place / f"node{node}"),
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


def test_a_failure_on_one_node_is_one_error_on_all_ranks(on):
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
        assert f" of {name} succeeded on node 0, but failed on node 1, which does not share" in text
        assert f": {inner}: " in text
    assert zero[-1] == ("FileNotFoundError", "[Errno 2] No such file or directory: 'none/x'")
