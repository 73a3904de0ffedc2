"""What a package holds open, on 2 and 3 ranks: one file, with what one process would write."""

from __future__ import annotations

import os
import shelve
import sqlite3
import tarfile
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
    with h5py.File("a.h5") as file:
        seen.append(file["x"][:].tolist())
    with h5py.File("a.h5", "a") as file:
        file["y"] = np.ones(2)
        file["x"][0] += 5
    with h5py.File("a.h5", mode="r+") as file:
        del file["y"]
    file = h5py.File(Path("a.h5"), "r")
    seen.append([list(file), float(file["x"][0]), os.path.basename(file.filename)])
    file.close()
    file.close()
    seen += [
        raised(lambda: h5py.File("a.h5", "x"))[0],
        raised(lambda: h5py.File("nowhere/a.h5", "w"))[0],
    ]
    with h5py.File("b.h5", "x") as file:
        file["z"] = 1
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


def database(run):
    one = sqlite3.connect("a.db")
    one.execute("create table t (n integer, at text default current_timestamp)")
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
    one.close()
    with sqlite3.connect("file:a.db?mode=ro", uri=True) as three:
        seen.append(three.execute("select n, at from t").fetchall()[0][0])
        times = three.execute("select at from t").fetchall()
        seen.append(raised(lambda: three.execute("delete from t")))
    three.close()
    memory = sqlite3.connect(":memory:")
    memory.execute("create table t (n)")
    memory.close()
    seen.append(raised(lambda: sqlite3.connect("nowhere/a.db")))
    seen.append(raised(sqlite3.connect))
    four = sqlite3.connect("w.db")
    seen.append(four.execute("pragma journal_mode=wal").fetchall())
    four.execute("create table t (n)")
    four.execute("insert into t values (5)")
    four.commit()
    five = sqlite3.connect("w.db")
    seen.append(five.execute("select n from t").fetchall())
    five.close()
    four.close()
    return seen, times


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


def parquet(run):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    part = pa.table({"a": [1, 2]})
    with pq.ParquetWriter("a.parquet", part.schema) as writer:
        writer.write_table(part)
        writer.write_table(part)
    return pq.read_table("a.parquet").to_pydict(), raised(
        lambda: pq.ParquetWriter("nowhere/a.parquet", part.schema)
    )


def package(run):
    from torch.package import PackageExporter, PackageImporter

    with PackageExporter("a.pkg") as made:
        made.save_text("said", "text", "hello")
    return PackageImporter("a.pkg").load_text("said", "text")


def pages(run):
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    with PdfPages("a.pdf", metadata={"CreationDate": None}) as made:
        for _ in range(2):
            made.savefig(Figure())
    return Path("a.pdf").read_bytes().count(b"/Type /Page ")


def excel(run):
    pd, _ = pytest.importorskip("pandas"), pytest.importorskip("openpyxl")
    with pd.ExcelWriter("a.xlsx", engine="openpyxl") as book:
        pd.DataFrame({"a": [1]}).to_excel(book, sheet_name="one")
    with pd.ExcelWriter("a.xlsx", mode="a", engine="openpyxl") as book:
        pd.DataFrame({"a": [2]}).to_excel(book, sheet_name="two")
    return [
        sorted(sheet["a"].tolist()) for sheet in pd.read_excel("a.xlsx", sheet_name=None).values()
    ]


def store(run):
    pd, _ = pytest.importorskip("pandas"), pytest.importorskip("tables")
    with pd.HDFStore("s.h5") as kept:
        kept["a"] = pd.Series([1, 2])
    with pd.HDFStore("s.h5") as kept:
        kept["b"] = kept["a"] * 2
    return pd.read_hdf("s.h5", "b").tolist()


def sound(run):
    soundfile = pytest.importorskip("soundfile")
    with soundfile.SoundFile("a.wav", "w", 8000, 1) as file:
        file.write(np.zeros(10))
    with soundfile.SoundFile("a.wav", "r+") as file:
        file.seek(0, 2)
        file.write(np.zeros(5))
    return len(soundfile.read("a.wav")[0])


SCRIPTS = (hdf5, maps, database, archives, parquet, package, pages, excel, store, sound)


def every(run):
    """What each of the scripts returns, and what this rank touched by then."""
    done = {}
    for script in SCRIPTS:
        begin = len(SEEN)
        try:
            done[script.__name__] = script(run), SEEN[begin:]
        except pytest.skip.Exception as reason:
            done[script.__name__] = str(reason), None
    return done


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What every script returned in one process, and on 2 and 3 ranks, and where."""
    done = {}
    for nproc in (1, 2, 3):
        at = tmp_path_factory.mktemp(f"on{nproc}")
        features = FEATURES if nproc > 1 else ()
        done[nproc] = (
            at,
            on_ranks(every, nproc, *features, folder=at, before=lambda rank, at=at: watch(at)),
        )
    return done


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_what_is_held_open_is_written_once_and_read_by_all(told, script):
    result, touched = told[1][1][0][script.__name__]
    if touched is None:
        pytest.skip(result)
    if script is database:
        result = result[0]
    for nproc in (2, 3):
        answers = [rank[script.__name__] for rank in told[nproc][1]]
        if script is database:
            # rank 0's time stamps
            assert all(answer[0][1] == answers[0][0][1] for answer in answers)
            answers = [((seen[0]), changes) for seen, changes in answers]
        assert [answer for answer, _ in answers] == [result] * nproc
        assert [changes for _, changes in answers[1:]] == [[]] * (nproc - 1)


@pytest.mark.parametrize("nproc", [2, 3])
def test_the_files_are_those_of_one_process(told, nproc):
    alone, ranks = told[1][0], told[nproc][0]
    assert sorted(os.listdir(ranks)) == sorted(os.listdir(alone))
    for name in ("a.map", "b.npy", "a.zip", "a.parquet", "shelf.dat", "plain", "a.pdf"):
        if (alone / name).exists():
            assert (ranks / name).read_bytes() == (alone / name).read_bytes(), name
    with sqlite3.connect(ranks / "a.db") as read:
        assert read.execute("select n from t").fetchall() == [(0,), (1,), (2,), (9,), (10,)]
    read.close()


def test_a_connection_that_nobody_closed_is_written_by_rank_0_alone(tmp_path):
    def script(run):
        one = sqlite3.connect("a.db")
        one.execute("create table t (n)")
        one.execute("insert into t values (1)")
        one.commit()
        del one
        two = sqlite3.connect("a.db")
        return two.execute("select n from t").fetchall()

    assert on_ranks(script, 2, *FEATURES, folder=tmp_path) == [[(1,)]] * 2
    assert os.listdir(tmp_path) == ["a.db"]


def test_a_database_that_every_rank_writes_is_named(tmp_path):
    lmdb = pytest.importorskip("lmdb")

    def script(run):
        folder = str(tmp_path / f"{run.world.rank}")
        lmdb.open(folder).close()
        lmdb.open(folder, readonly=True).close()
        return [doubt.what[:9] for doubt in run.report.of("holders")]

    assert on_ranks(script, 2, *FEATURES) == [["lmdb.open"]] * 2
