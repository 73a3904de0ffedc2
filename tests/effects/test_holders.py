"""Files that a package keeps open, on 2 and 3 ranks: one file, equal to that of one process."""

from __future__ import annotations

import os
import shelve
import sqlite3
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.library_files import Holders
from autoddp.effects.temporary import Temporary
from tests.effects.outward import on_ranks, raised
from tests.effects.test_who_writes import SEEN, watch

FEATURES = (Files, Folders, Temporary, Holders)


def hdf5(run):
    h5py = pytest.importorskip("h5py")
    seen = []
    with h5py.File("a.h5", "w") as file:
        file["x"] = np.arange(4.0)
        file.flush()
        seen.append(file["x"][:].tolist())
    with h5py.File("a.h5", "a") as file:
        file["y"] = np.ones(2)
        file["x"][0] += 5
    file = h5py.File(Path("a.h5"), "r")
    seen.append([list(file), float(file["x"][0]), os.path.basename(file.filename)])
    file.close()
    seen += [
        raised(lambda: h5py.File("a.h5", "x"))[0],
        raised(lambda: h5py.File("nowhere/a.h5", "w"))[0],
    ]
    return seen


def maps(run):
    one = np.memmap("a.map", dtype="int32", mode="w+", shape=(4,))
    one[:] = 7
    one[0] += 1
    one.flush()
    two = np.memmap("a.map", dtype="int32", mode="r+")
    two[1] += 2
    two.flush()
    read = np.memmap("a.map", dtype="int32", mode="r")
    array = np.lib.format.open_memmap("b.npy", mode="w+", dtype="float64", shape=(3,))
    array[:] = 0.5
    array.flush()
    again = np.load("b.npy", mmap_mode="r+")
    again[1] *= 2
    again.flush()
    wrong = raised(lambda: np.memmap("none.map", mode="r+"))[0]
    return (
        read.tolist(),
        np.load("b.npy").tolist(),
        np.fromfile("a.map", dtype="int32").tolist(),
        wrong,
    )


def arrow_map(run):
    arrow = pytest.importorskip("pyarrow")
    Path("a.map").write_bytes(b"0123")
    seen = []
    with arrow.memory_map("a.map", "r+") as file:
        time.sleep(0.1 * run.world.rank)  # a rank that wrote for real would be seen by the next
        first = file.read(1)[0]
        file.seek(0)
        file.write(bytes([first + 1]))
        seen.append(file.read())
    with arrow.memory_map("a.map") as file:
        seen.append(file.read())
    return seen, Path("a.map").read_bytes(), raised(lambda: arrow.memory_map("none", "r+"))[0]


def database(run):
    one = sqlite3.connect("a.db")
    one.execute("create table t (n integer)")
    for n in range(3):
        one.execute("insert into t (n) values (?)", (n,))
    one.commit()
    two = sqlite3.connect(Path("a.db"), timeout=1.0)
    two.execute("insert into t (n) values (9)")
    two.commit()
    two.close()
    again = sqlite3.connect("a.db")
    one.execute("insert into t (n) values (10)")
    one.commit()
    seen = [again.execute("select n from t").fetchall(), isinstance(one, sqlite3.Connection)]
    again.close()
    one.close()
    with sqlite3.connect("file:a.db?mode=ro", uri=True) as three:
        seen.append(three.execute("select n from t").fetchall())
        seen.append(raised(lambda: three.execute("delete from t")))
    three.close()
    by_uri = sqlite3.connect("file:u%20v.db?mode=rwc", uri=True)
    by_uri.execute("create table t (n)")
    by_uri.commit()
    seen.append(by_uri.execute("select n from t").fetchall())
    by_uri.close()
    memory = sqlite3.connect(":memory:")
    memory.execute("create table t (n)")
    memory.close()
    seen.append(raised(lambda: sqlite3.connect("nowhere/a.db")))
    four = sqlite3.connect("w.db")
    seen.append(four.execute("pragma journal_mode=wal").fetchall())
    four.execute("create table t (n)")
    four.commit()
    five = sqlite3.connect("w.db")
    seen.append(five.execute("select n from t").fetchall())
    five.close()
    del four  # which nobody closed
    return seen


def archives(run):
    with zipfile.ZipFile("a.zip", "w") as made:
        made.writestr(zipfile.ZipInfo("x.txt"), "text")
    with zipfile.ZipFile("a.zip", "a") as made:
        made.writestr(zipfile.ZipInfo("y.txt"), "more")
    Path("plain").write_text("in a tar")
    with tarfile.open("a.tar.gz", "w:gz") as made:
        made.add("plain")
    with shelve.open("shelf") as shelf:
        shelf["k"] = [1]
    with shelve.open("shelf") as shelf:
        shelf["j"] = shelf["k"] + [2]
    with (
        zipfile.ZipFile("a.zip") as read,
        tarfile.open("a.tar.gz") as tar,
        shelve.open("shelf") as shelf,
    ):
        return read.namelist(), read.read("y.txt"), tar.getnames(), sorted(shelf.items())


@pytest.mark.parametrize("script", [hdf5, maps, arrow_map, database, archives])
def test_files_kept_open_are_written_once_and_read_by_all_ranks(script, tmp_path):
    done = []
    for nproc, features in ((1, ()), (3, FEATURES)):
        at = tmp_path / str(nproc)
        at.mkdir()

        def act(run):
            return script(run), SEEN

        done.append(on_ranks(act, nproc, *features, folder=at, before=lambda _, at=at: watch(at)))
    ((result, _),), ranks = done
    assert [found for found, _ in ranks] == [result] * 3
    assert [changes for _, changes in ranks[1:]] == [[]] * 2
    one, many = tmp_path / "1", tmp_path / "3"
    assert sorted(os.listdir(many)) == sorted(os.listdir(one))
    for name in os.listdir(one):  # the others tell when they were written
        if name.endswith((".map", ".npy", ".zip", ".dat", ".db")):
            assert (many / name).read_bytes() == (one / name).read_bytes(), name
