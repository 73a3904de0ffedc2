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
import urllib.request
import warnings
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
from tests.support import archives
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
            log.flush()
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
        seen += [sorted(glob.glob("d/**", recursive=True)), raised(Path("a/log").read_text)]
        os.chdir("d/b")
        seen.append([os.getcwd(), Path("log").read_text(), raised(lambda: os.chdir("none"))])
        os.chdir("../..")
        shutil.rmtree("d")
        seen.append(raised(lambda: Path("d/b/log").read_text()))
        handle = os.open("a/log", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(handle, b"3\n")
        os.close(handle)
        with sqlite3.connect("a/base") as base:
            base.execute("create table t (x)")
        base.close()
        return pickle.dumps([seen, Path("a/log").read_text()])

    zero, *others = on(script, 3, shared)
    seen, log = pickle.loads(zero)
    assert [pickle.loads(other) for other in others] == [[seen, log]] * 2
    assert seen[:5] == [[1.0, 1.0], [1.0, 1.0], [0, 1, 2], [1.0, 2.0], [49, 50]]
    assert seen[5:9] == [[12]] * 4
    assert seen[9:12] == ["12", "1\n2\n", "12"]
    assert seen[13] == ("FileNotFoundError", "[Errno 2] No such file or directory: 'a/log'")
    assert log == "3\n"
    zero, one = (contents(on.folder / f"node{node}") for node in (0, 1))
    assert sorted(zero) == ["a/b/text", "a/base", "a/link", "a/log", "a/x.npy", "a/x.pt"]
    assert one == ({} if shared else zero)
    assert [list((on.folder / f"tmp{node}").iterdir()) for node in (0, 1)] == [[], []]


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_what_is_temporary_has_one_name_on_all_nodes_and_goes_on_all(on, shared):
    """The folder of temporary files is each node's own; whether the working folder is or not."""

    def script(run):
        folder, seen = tempfile.mkdtemp(), []
        with tempfile.TemporaryDirectory() as other:
            torch.save(torch.ones(2), f"{other}/best.pt")
            seen.append(torch.load(f"{other}/best.pt").tolist())
            with run.effects.context.internal():
                seen += [os.path.isdir(name) for name in (folder, other)]
        left = tempfile.TemporaryDirectory()
        handle, name = tempfile.mkstemp(suffix=".bin")
        os.write(handle, b"x")
        os.close(handle)
        os.replace(name, f"{folder}/kept")
        seen.append(Path(folder, "kept").read_text())
        with tempfile.NamedTemporaryFile("w", prefix="p", delete=False) as file:
            file.write("y")
        seen.append(Path(file.name).read_text())
        os.remove(file.name)
        with tempfile.NamedTemporaryFile() as file:
            seen.append(os.path.exists(file.name))
        shutil.rmtree(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del left
        run.group.barrier()  # the rank of a node that made a folder removes it
        with run.effects.context.internal():
            return [*seen, [x for x in os.listdir(tempfile.gettempdir()) if x[:3] != "aut"]]

    assert on(script, 3, shared) == [[[1.0, 1.0], True, True, "x", "y", True, []]] * 3


def test_what_goes_wrong_on_a_node_alone_is_one_error_that_names_it_on_all_ranks(on):
    (on.folder / "node0/data").mkdir()
    (on.folder / "node0/old").write_text("of an earlier job")
    (on.folder / "node1/made").mkdir()

    def full(run):
        """Leave no room on node 1's disk."""
        if run.world.node_rank:
            sh("mount", "-t", "tmpfs", "-o", "size=64k", "none", str(on.folder / "at/made"))

    def log():
        with open("made/log", "w") as file:
            file.write("x" * (1 << 17))

    def script(run):
        torch.save(torch.ones(2), "x.pt")
        seen = [
            raised(lambda: torch.save(torch.ones(2), "data/x.pt")),
            raised(lambda: Path("data/x").write_text("x")),
            raised(lambda: os.replace("old", "new")),
            raised(lambda: os.mkdir("made")),
        ]
        with run.effects.context.internal():
            os.makedirs("made", exist_ok=True)
            if run.world.local_rank == 0:
                full(run)
        seen.append(raised(lambda: torch.save(torch.ones(1 << 16), "made/x.pt")))
        seen += [raised(log), raised(lambda: open("none/x", "w").close())]
        return seen

    zero, one, two = on(script, 3)
    assert zero == one == two
    kinds = ["RuntimeError"] + ["FileNotFoundError"] * 2
    kinds += ["FileExistsError", "RuntimeError", "OSError"]  # torch words two of them by itself
    names = ["data/x.pt", "data/x", "new", "made", "made/x.pt", "made/log"]
    for (kind, text), inner, name in zip(zero, kinds, names, strict=False):
        assert kind == "NodeFailed", text
        said = f" of {name} went well on node 0 and not on node 1, which has a folder of its own"
        assert said in text
        assert f": {inner}: " in text
    assert zero[-1] == ("FileNotFoundError", "[Errno 2] No such file or directory: 'none/x'")


def test_a_folder_that_nodes_share_inside_one_that_they_do_not_is_written_once(on):
    """Another file system below the working folder; a link leads there, too."""
    for name in ("node0/shared", "node1/shared", "common"):
        (on.folder / name).mkdir()

    def script(run):
        with run.effects.context.internal():
            sh("mount", "--bind", str(on.folder / "common"), "shared")
            if run.world.rank == 0:
                os.symlink("shared", "link")
        with open("link/log", "a") as log:
            log.write("once\n")
        torch.save(torch.ones(2), "shared/x.pt")
        Path("own").write_text("each")
        return torch.load("shared/x.pt").tolist(), Path("shared/log").read_text()

    if os.stat(on.folder).st_dev == os.stat("/dev/shm").st_dev:
        pytest.skip("another file system is needed")
    sh("mount", "-t", "tmpfs", "none", str(on.folder / "common"))
    try:
        assert on(script, 3) == [([1.0, 1.0], "once\n")] * 3
    finally:
        sh("umount", str(on.folder / "common"))
    assert [sorted(contents(on.folder / f"node{node}")) for node in (0, 1)] == [["own"]] * 2


def test_a_thread_writes_on_each_node(on):
    def script(run):
        Path("x").write_text("x")

        def log():
            os.mkdir("logs")
            with open("logs/log", "w") as file:
                file.write("by a thread")
            os.rename("logs/log", "logs/kept")

        thread = threading.Thread(target=log)
        thread.start()
        thread.join()
        run.group.barrier()
        return Path("logs/kept").read_text()

    assert on(script, 2) == ["by a thread"] * 2
    assert [sorted(contents(on.folder / f"node{n}")) for n in (0, 1)] == [["logs/kept", "x"]] * 2


def test_a_download_is_made_once_on_each_node_that_lacks_its_folder(on):
    served = on.folder / "served"
    served.mkdir()
    torch.save({"w": torch.ones(2)}, served / "w.pt")
    (served / "hello").write_text("hello")

    def script(run):
        load, url = torch.hub.load_state_dict_from_url, serving.url
        weights = load(f"{url}/w.pt", "weights", progress=False)["w"].tolist()
        urllib.request.urlretrieve(f"{url}/hello", "hello")
        path, headers = urllib.request.urlretrieve(f"{url}/hello")
        body = urllib.request.urlopen(f"{url}/hello").read().decode()
        read = [Path(name).read_text() for name in ("hello", path)]
        torch.hub.download_url_to_file(f"{url}/hello", "other", progress=False)
        return weights, [*read, body, Path("other").read_text()], headers["Content-Length"]

    with archives.serving(served) as serving:
        assert on(script, 3) == [([1.0, 1.0], ["hello"] * 4, "5")] * 3
        assert dict(serving.requests) == {"w.pt": 2, "hello": 2 * 3 + 1}
    assert contents(on.folder / "node1") == contents(on.folder / "node0")


def test_what_node_lacks_the_folder_is_said_once(on):
    def script(run):
        return [decision.what for decision in run.report.of("nodes")], os.listdir()

    said = (
        f"node 1 does not share {on.folder}/at with node 0: the first rank there writes what "
        "rank 0 writes, and files are read on each node's own disk"
    )
    assert on(script, 3) == [([said], []), ([], []), ([], [])]
    assert on(script, shared=True) == [([], [])] * 2


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
