"""Ranks with a folder each, by private mounts of this process's own: what they read is rank 0's."""

from __future__ import annotations

import ctypes
import glob
import os
import pickle
import shutil
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing import Value
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from autoddp import torch_internals
from autoddp.comm.world import World
from autoddp.effects import file_server
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.temporary import Temporary
from autoddp.effects.unshared_folders import UnsharedFolders
from tests.effects.outward import installed, raised
from tests.support.ranks import run_ranks

CLONE_NEWNS = 0x20000


def sh(*line: str) -> None:
    subprocess.run(line, check=True, capture_output=True, timeout=20)


@pytest.fixture
def on(tmp_path):
    """`on(script)`: what it returns on each rank; rank 0 is node 0, the others are node 1."""
    if subprocess.run(
        ["unshare", "-m", "true"], capture_output=True, timeout=20, check=False
    ).returncode:
        pytest.skip("no private mounts can be made here")
    for name in ("at", "tmp", "node0", "node1", "tmp0", "tmp1"):
        (tmp_path / name).mkdir()

    def on(script: Callable[[Any], Any], nproc: int = 2, shared: bool = False) -> list[Any]:
        def rank(group):
            node = min(group.rank, 1)
            assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
            sh("mount", "--make-rprivate", "/")
            sh(
                "mount",
                "--bind",
                str(tmp_path / f"node{0 if shared else node}"),
                str(tmp_path / "at"),
            )
            sh("mount", "--bind", str(tmp_path / f"tmp{node}"), str(tmp_path / "tmp"))
            os.chdir(tmp_path / "at")
            tempfile.tempdir = str(tmp_path / "tmp")
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
            with installed(group, UnsharedFolders, Files, Folders, Temporary) as run:
                return script(run)

        return run_ranks(rank, nproc, timeout=240)

    on.folder = tmp_path
    return on


class Reads(Dataset):
    """What is in a file, read where the sample is fetched."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 2

    def __getitem__(self, at):
        return int(Path(self.path).read_text())


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_readers_find_it(on, shared):
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
        seen = [torch.load("a/x.pt"), torch.load("a/x.pt", mmap=True), np.load("a/x.npy")]
        seen = [value.tolist() for value in seen]
        seen += [np.loadtxt("a/log").tolist(), np.fromfile("a/b/text", dtype="u1").tolist()]
        for workers in (0, 1):
            seen += [batch.tolist() for batch in DataLoader(Reads("a/b/text"), num_workers=workers)]
        os.symlink("b/text", "a/link")
        shutil.copytree("a", "c")
        shutil.move("a/log", "c/b")
        os.rename("c", "d")
        seen += [Path(name).read_text() for name in ("a/link", "d/b/log", "d/b/text")]
        seen += [
            sorted(glob.glob("d/**", recursive=True)),
            raised(lambda: Path("a/log").read_text()),
        ]
        os.chdir("d/b")
        seen.append([os.getcwd(), Path("log").read_text(), raised(lambda: os.chdir("none"))])
        os.chdir("../..")
        shutil.rmtree("d")
        seen.append(raised(lambda: Path("d/b/log").read_text()))
        with open("a/log", "a") as log:
            log.write("3\n")
        return pickle.dumps([seen, Path("a/log").read_text()])

    zero, *others = on(script, 3, shared)
    seen, log = pickle.loads(zero)
    assert [pickle.loads(other) for other in others] == [[seen, log]] * 2
    assert seen[:5] == [[1.0, 1.0], [1.0, 1.0], [0, 1, 2], [1.0, 2.0], [49, 50]]
    assert seen[5:9] == [[12]] * 4
    assert seen[9:12] == ["12", "1\n2\n", "12"]
    assert seen[13] == ("FileNotFoundError", "[Errno 2] No such file or directory: 'a/log'")
    assert log == "3\n"
    left = [path.name for path in on.folder.glob("node1/**/*") if path.is_file()]
    assert left == [], "another node's folder gets no files"
    assert [list((on.folder / f"tmp{node}").iterdir()) for node in (0, 1)] == [[], []]


def test_what_was_there_before_is_the_nodes_own_unless_it_is_missing_there(on):
    """Data sets are on each node; a checkpoint of an earlier job may be on node 0 alone."""
    for node in (0, 1):
        (on.folder / f"node{node}/data").write_text(str(node))
        (on.folder / f"node{node}/last").write_text(f"{node}, of an earlier job")
    (on.folder / "node0/config").write_text("rank 0's")
    for name in ("asked", "unasked"):
        (on.folder / f"tmp0/{name}").write_text("old")
        os.utime(on.folder / f"tmp0/{name}", (1, 1))
    time.sleep(file_server.SKEW / 1e9)  # they are older than the job

    class Late(set):
        """Rank 0's thread that serves is asked while its main thread has yet to note a path."""

        def add(self, path):
            time.sleep(0.5)
            super().add(path)

    def script(run):
        if run.world.rank == 0:
            run.effects.server.announced = Late()
        seen = [Path("data").read_text(), Path("config").read_text()]
        Path("last").write_text("new")
        seen.append(Path("last").read_text())
        os.remove("last")
        seen.append(raised(lambda: Path("last").read_text())[0])
        tmp = tempfile.gettempdir()
        if os.path.exists(f"{tmp}/asked"):
            seen.append(Path(tmp, "asked").read_text())
        seen.append(raised(lambda: Path(tmp, "unasked").read_text())[0])
        return seen

    zero, one = on(script)
    assert zero == ["0", "rank 0's", "new", "FileNotFoundError", "old", ""]
    assert one == ["1", "rank 0's", "new", "FileNotFoundError", "old", "FileNotFoundError"]


def test_once_each_node(on, monkeypatch):
    """Whoever asks: several ranks, their worker processes, those there before the file."""
    parts = Value("i", 0)
    plain = file_server.FileServer._answer

    def counted(self, path, facts, offset, body):
        told = plain(self, path, facts, offset, body)
        parts.value += bool(body)
        return told

    monkeypatch.setattr(file_server.FileServer, "_answer", counted)
    size = 3 * file_server.PART + 1

    def script(run):
        loader = DataLoader(Reads("count"), num_workers=1, persistent_workers=True)
        Path("count").write_text("4")
        first = [batch.tolist() for batch in loader]
        Path("count").write_text("5")
        Path("large").write_bytes(bytes(size))
        seen = [first, [batch.tolist() for batch in loader], len(Path("large").read_bytes())]
        seen += [batch.tolist() for batch in DataLoader(Reads("count"), num_workers=2)]
        return [*seen, len(Path("large").read_bytes())]

    seen = on(script, 3)
    assert seen == [[[[4], [4]], [[5], [5]], size, [5], [5], size]] * 3
    assert parts.value == 4 + 2, "4 parts of the large file, and two small ones"


def test_a_file_whose_time_goes_back_is_handed_over_too(on):
    """An older file takes the name: the copy just made stays, and so does the one before it."""

    def script(run):
        found, seen = [], []
        for word, changed in zip("abca", (3, 2, 1, 3), strict=True):
            Path("new").write_text(word)
            os.utime("new", (changed, changed))
            os.replace("new", "last")
            found.append(run.effects.found("last"))
            with run.effects.context.internal():
                assert all(map(os.path.exists, found[-2:])), found[-2:]
            seen.append(Path("last").read_text())
        return seen

    assert on(script) == [["a", "b", "c", "a"]] * 2


def test_a_file_too_large_is_refused_with_the_way_out(on, monkeypatch):
    monkeypatch.setattr(file_server, "LIMIT", 1000)
    monkeypatch.setattr(file_server, "LATE", 1.0)

    def script(run):
        Path("fits").write_bytes(bytes(1000))
        Path("large").write_bytes(bytes(1001))
        return len(Path("fits").read_bytes()), raised(lambda: Path("large").read_bytes())

    zero, one = on(script)
    assert zero == (1000, ("", ""))
    assert one == (
        1000,
        (
            "TooLarge",
            f"{on.folder}/at/large is on node 0 and, after 1 s, not on node 1: 1001 bytes, "
            "and up to 1000 are handed over; put it in a folder that both nodes share, "
            "or copy it to node 1",
        ),
    )


def test_a_large_file_that_a_file_server_shows_late_is_waited_for(on, monkeypatch):
    """Another size, then half of it, then all: as its parts arrive."""
    monkeypatch.setattr(file_server, "LIMIT", 1000)
    body = bytes(range(250)) * 8
    Path(on.folder / "node1" / "large").write_bytes(b"of an earlier job")

    def script(run):
        Path("large").write_bytes(body)
        return Path("large").read_bytes() == body

    server = threading.Thread(target=arrives, args=(on.folder,))
    server.start()
    assert on(script) == [True, True]
    server.join()


def arrives(folder: Path) -> None:
    source, target = folder / "node0" / "large", folder / "node1" / "large"
    while not source.exists():
        time.sleep(0.01)
    for part in (2, 1):
        time.sleep(0.3)
        target.write_bytes(source.read_bytes()[: 2000 // part])
    shutil.copystat(source, target)


def test_rank_0_stays_until_the_others_have_read(on):
    def script(run):
        Path("x").write_text("late")
        if run.world.rank:
            time.sleep(0.5)
        return Path("x").read_text()

    assert on(script) == ["late", "late"]


def test_what_node_lacks_the_folder_is_said_once(on):
    def script(run):
        return [decision.what for decision in run.report.of("nodes")], os.listdir()

    said = (
        f"node 1 does not share {on.folder}/at with node 0: "
        "what rank 0 writes is handed over when it is read there"
    )
    assert on(script, 3) == [([said], []), ([], []), ([], [])]
    assert on(script, shared=True) == [([], [])] * 2


def test_temporary_folders_are_made_and_removed_on_each_node(on):
    def script(run):
        folder = tempfile.mkdtemp()
        with tempfile.TemporaryDirectory() as other:
            with run.effects.context.internal():
                there = [os.path.isdir(name) for name in (folder, other)]
            Path(other, "x").write_text("y")
        left = tempfile.TemporaryDirectory()
        shutil.rmtree(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del left
        run.group.barrier()  # the rank of a node that made a folder removes it
        with run.effects.context.internal():
            return there, [
                name for name in os.listdir(tempfile.gettempdir()) if name.startswith("tmp")
            ]

    assert on(script, 3) == [([True, True], [])] * 3


def test_what_the_script_asks_of_the_disk_node_0_answers(on):
    """Node 1's disk holds something else under each of these names."""
    for node, size in ((0, 3), (1, 5)):
        for name in ("a", "sub/b", "sub/deep/c"):
            path = on.folder / f"node{node}" / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(bytes(size))
            os.utime(path, (size, size))
        (on.folder / f"node{node}/only{node}").touch()
        (on.folder / f"node{node}/link").symlink_to("a" if node == 0 else "sub")

    def script(run):
        names = ("a", "only0", "only1", "sub", "link", "none")
        asked = (os.path.exists, os.path.isfile, os.path.isdir, os.path.islink, os.path.lexists)
        seen = [[ask(name) for name in names] for ask in asked]
        seen += [
            os.path.getsize("a"),
            os.path.getmtime("a"),
            os.path.getctime("a"),
            os.stat("a").st_ino,
        ]
        seen += [
            os.path.realpath("link"),
            os.path.samefile("a", "link"),
            Path("link").resolve().name,
        ]
        seen += [os.access(name, os.W_OK) for name in ("a", "only1", "none")]
        seen += [
            sorted(glob.glob("**", recursive=True)),
            sorted(glob.glob("only*")),
            glob.glob("sub/*/*"),
        ]
        seen += [sorted(map(str, Path().rglob("*"))), sorted(map(str, Path("sub").glob("*")))]
        seen += [sorted(p.name for p in Path().iterdir()), sorted(os.listdir()), list(os.walk("."))]
        seen += [
            sorted((e.name, e.is_dir(), e.stat().st_size) for e in os.scandir()),
            Path("a").stat().st_size,
        ]
        seen += [Path("sub/b").exists(), Path("only1").is_file(), Path("link").readlink().name]
        seen += [tuple(shutil.disk_usage(".")), os.statvfs(".").f_ffree, os.path.ismount(".")]
        with open("mine", "w") as file:
            file.write("abc")
            file.flush()
            seen += [Path("mine").read_text(), os.listdir().count("mine"), os.path.getsize("mine")]
        return pickle.dumps(seen)

    zero, one = (pickle.loads(each) for each in on(script))
    assert zero == one
    assert zero[0] == [True, True, False, True, True, False]
    assert zero[5] == 3
    assert zero[-3:] == ["abc", 1, 3]
