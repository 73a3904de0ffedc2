# ruff: noqa: SIM115 - scripts leave files open, and that is what is tested
import bz2
import csv
import gc
import gzip
import io
import json
import os
import pickle
import stat
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.temporary import Temporary
from tests.effects.full import mounted
from tests.effects.outward import on_ranks, raised

OPEN = (Files, Folders, Temporary)
BIG = 100_000  # bytes, more than fits


@pytest.fixture
def on(tmp_path):
    """`on(script)`: the results on 2 ranks, run in tmp_path."""
    return lambda script, nproc=2, **kw: on_ranks(script, nproc, *OPEN, folder=tmp_path, **kw)


@pytest.fixture
def small(tmp_path):
    """`tmp_path / "small"` is a disk of 64 KB."""
    with mounted(tmp_path / "small") as folder:
        yield folder


# ---- what is written, and how it is opened


def write_in_every_way(folder):
    """Write the files of one process."""
    os.makedirs(folder)
    os.chdir(folder)
    with open("text", "w", encoding="utf-16", newline="\r\n") as file:
        print("a\nä", file=file)
    with open("text", "a", encoding="utf-16", newline="\r\n") as file:
        file.write("more\n")
    with open("bare", "wb", buffering=0) as file:
        file.write(b"one")
    with open("lines", "w", buffering=1) as file:
        file.writelines(["1\n2", "3", "4\n"])
    with open("back", "w+") as file:
        file.write("0123456789")
        file.seek(4)
        file.write("x" + file.read(2))
        file.truncate(8)
    with open("back", "r+b", buffering=4) as file:
        file.seek(1)
        file.write(b"bc")
    with open("private", "x", opener=lambda path, flags: os.open(path, flags, 0o640)) as file:
        file.write("p")
    with Path("path").open("wb") as file:
        pickle.dump([1, "a"], file)
    with open("table.csv", "w", newline="") as file:
        csv.writer(file).writerows([[1, "a,b"], [2, 'c"']])
    with open(b"json", "w") as file:
        json.dump({"a": [1]}, file)
    with open("sent", "wb") as file, open("path", "rb") as source:
        os.sendfile(file.fileno(), source.fileno(), 0, 2)
    with open("array", "wb") as file:
        np.arange(3).tofile(file)
        np.save(file, np.arange(2))
        torch.save(1, file)


def pack_in_every_way():
    """Fix the time in archives, so that they are equal in all runs."""
    with gzip.GzipFile("z.gz", "wb", mtime=0) as file:
        file.write(b"gz")
    with bz2.open("z.bz2", "wt") as file:
        file.write("bz2")
    with zipfile.ZipFile("z.zip", "w") as file:
        file.writestr(zipfile.ZipInfo("a"), "zip")
    with tarfile.open("z.tar", "w", format=tarfile.PAX_FORMAT) as file:
        file.addfile(tarfile.TarInfo("a"), io.BytesIO(b""))


def contents(folder):
    """The mode and bytes of every file."""
    files = sorted(p for p in Path(folder).rglob("*") if p.is_file())
    return {p.name: (oct(stat.S_IMODE(p.stat().st_mode)), p.read_bytes()) for p in files}


def test_written_files_have_the_bytes_of_one_process_for_all_ranks(on, tmp_path):
    def script(run):
        write_in_every_way("ranks")
        pack_in_every_way()
        return {name: Path(name).read_bytes() for name in sorted(os.listdir())}

    was = os.getcwd()
    os.chdir(tmp_path)
    try:
        write_in_every_way("one")
        pack_in_every_way()
    finally:
        os.chdir(was)
    zero, one = on(script)
    assert contents(tmp_path / "ranks") == contents(tmp_path / "one")
    assert zero == one == {name: data for name, (_, data) in contents(tmp_path / "one").items()}


# ---- what fails


def torch_save(path):
    torch.save(torch.zeros(BIG), path)


def numpy_save(path):
    np.save(path, np.zeros(BIG))


def write_and_close(path):
    with open(path, "w") as file:
        file.write("x" * BIG)


@pytest.mark.parametrize("act", [torch_save, numpy_save, write_and_close])
def test_a_full_disk_raises_on_all_ranks_at_the_same_line(on, small, act):
    (small / "old").write_text("old")

    def script(run):
        said = raised(lambda: act("small/new"))
        after = os.listdir("small") if act in (torch_save, numpy_save) else ["old"]
        os.makedirs("goes/on")
        return said, after

    zero, one = on(script)
    assert zero == one
    (kind, text), after = zero
    plain = raised(lambda: act(small / "plain"))
    assert kind == plain[0] == ("RuntimeError" if act is torch_save else "OSError")
    if kind == "OSError":
        assert text == plain[1].replace("plain", "new")
    assert after == ["old"]


def test_a_file_without_write_permission_raises_on_all_ranks(on, tmp_path):
    with mounted(tmp_path / "locked", "ro"):
        (tmp_path / "file").write_text("f")
        acts = [
            lambda: open("locked/x", "w"),
            lambda: open("file", "x"),
            lambda: open("nowhere/x", "w"),
            lambda: open("absent", "r+"),
            lambda: open("file", "wz"),
            lambda: os.mkdir("locked/d"),
            lambda: os.makedirs("file/below"),
            lambda: np.save("locked/a.npy", np.zeros(1)),
            lambda: Path("locked").write_text("a"),
            lambda: open("nul\0", "w"),
            lambda: open("file", "wb", encoding="utf-8"),
            lambda: os.utime("absent"),
        ]
        os.chdir(tmp_path)
        plain = [raised(act) for act in acts]
        assert all(kind for kind, _ in plain)
        assert on(lambda run: [raised(act) for act in acts]) == [plain] * 2
    assert sorted(os.listdir(tmp_path)) == ["file", "locked"]


# ---- threads, and the collector of cycles


def test_files_that_are_garbage_collected_at_different_times_do_not_hang(on, tmp_path):
    class Logger:
        def __init__(self, path):
            self.file, self.me = open(path, "w"), self
            self.file.write("said")

        def __del__(self):
            self.file.write(", done")
            self.file.close()
            os.makedirs("from/del", exist_ok=True)

    def script(run):
        gc.disable()
        Logger("a")
        if run.world.rank:
            gc.collect()
        Path("between").write_text("b")
        if run.world.rank == 0:
            gc.collect()
        Path("after").write_text("c")
        gc.enable()
        return os.path.exists("a")

    assert on(script, 3) == [True] * 3
    assert (tmp_path / "a").read_text() == "said, done"
    assert (tmp_path / "from/del").is_dir()


def test_a_thread_writes_on_rank_0_and_no_rank_waits(on, tmp_path):
    def script(run):
        log, done = open("log", "w"), []

        def work():
            for step in range(20):
                print(step, file=log, flush=True)
            with open("own", "w") as own:
                own.write("t")
            done.append(open("own").read())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        log.close()
        return done, len(Path("log").read_text().split())

    assert on(script) == [(["t"], 20)] * 2
    assert (tmp_path / "own").read_text() == "t"


# ---- descriptors


def test_writes_by_descriptors_make_one_file(on, tmp_path):
    def script(run):
        number = os.open("a", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        os.write(number, b"one")
        os.pwrite(number, b"O", 0)
        os.close(number)
        with os.fdopen(os.open("b", os.O_RDWR | os.O_CREAT | os.O_TRUNC), "w+") as file:
            file.write("text")
        number = os.open("c", os.O_WRONLY | os.O_CREAT)
        os.write(number, b"below")
        os.ftruncate(number, 3)
        os.close(number)
        refused = raised(lambda: os.open("a", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        return refused, [Path(name).read_text() for name in "abc"]

    texts = ["One", "text", "bel"]
    refused = ("FileExistsError", "[Errno 17] File exists: 'a'")
    assert on(script, 3) == [(refused, texts)] * 3
    assert [(tmp_path / name).read_text() for name in "abc"] == texts
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
