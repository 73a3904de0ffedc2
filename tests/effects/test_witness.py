"""What slips past us is said once, for each line of the user's and each library."""

import io
import json
import os
import sqlite3
import sys
import types
from pathlib import Path

import pytest

from autoddp.comm.group import Group
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.run import Run
from autoddp.effects.temporary import Temporary
from autoddp.effects.witness import Witness
from autoddp.options import Options
from autoddp.patching import Installation
from autoddp.report import Report
from tests.effects.outward import raised
from tests.support.ranks import run_ranks

LIBRARY = """
import io, json, os, shutil, tempfile

def save(path):
    _write(path)

def _write(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump([1], file)

def past(path):
    io.FileIO(path, "w").close()

def move(path, to):
    os.replace(path, to)

def link(path, at):
    os.symlink(os.path.basename(path), at)

def cache():
    save(os.path.expanduser("~/.cache/xyz/a"))
    with tempfile.TemporaryDirectory() as folder:
        save(folder + "/a/b")

def look(path):
    return open(path).read(), os.listdir(".")

class Writer:
    def add(self, path):
        save(path)
"""


@pytest.fixture
def on(tmp_path):
    """`on(script)`: what rank 0 has said after `script(run, xyz)`, xyz an installed package."""
    package = tmp_path / "lib" / "site-packages" / "xyz.py"
    package.parent.mkdir(parents=True)
    package.write_text(LIBRARY)
    (tmp_path / "work").mkdir()

    def on(script, nproc=2, strict=False):
        def rank(group: Group):
            os.chdir(tmp_path / "work")
            os.environ["HOME"] = str(tmp_path / "home")
            sys.path.insert(0, str(package.parent))
            import xyz

            report = Report(group.rank == 0, strict, io.StringIO())
            run = Run(group.world, Options(), group, types.SimpleNamespace(trials=[]), report)
            features = (Files, Folders, Temporary, Witness)
            with Installation([feature(run) for feature in features]):
                answer = script(run, xyz)
            xyz.save("after/a")  # nobody looks any more
            return answer, report.stream.getvalue().replace(
                "test_witness.py", "train.py"
            ).splitlines()

        return run_ranks(rank, nproc, timeout=240)

    return on


def test_what_a_library_writes_is_rank_0s_and_is_not_said(on, tmp_path):
    def script(run, xyz):
        xyz.save(f"out/{run.world.rank}")
        xyz.Writer().add("out/b")
        xyz.move("out/b", "out/c")
        xyz.save("out/log.7")
        xyz.link("out/log.7", "out/log")

    assert [said for _, said in on(script, 3)] == [[], [], []]
    assert sorted(os.listdir(tmp_path / "work" / "out")) == ["0", "c", "log", "log.7"]
    assert os.readlink(tmp_path / "work" / "out" / "log") == "log.7"


def test_what_writes_past_pythons_open_is_said_once_for_each_line(on):
    def script(run, xyz):
        for step in range(3):
            xyz.past(f"{run.world.rank}{step}")
        xyz.past("b")
        return sys._getframe().f_lineno

    (line, said), *others = on(script, 3)
    assert said == [
        f"[autoddp] train.py:{line - 2}: 00 is written past Python's open: every rank does",
        f"[autoddp] train.py:{line - 1}: b is written past Python's open: every rank does",
    ]
    assert [said for _, said in others] == [[], []]


def test_a_script_whose_current_folder_is_gone_goes_on_with_full_paths(on, tmp_path):
    def script(run, xyz):
        me = tmp_path / "work" / str(run.world.rank)
        with run.effects.context.internal():
            me.mkdir()
        os.chdir(me)
        with run.effects.context.internal():
            me.rmdir()
        said = raised(lambda: io.FileIO("a", "w"))[0]
        xyz.save(f"{tmp_path}/full")
        os.chdir(tmp_path)
        return said, json.loads((tmp_path / "full").read_text())

    assert [answer for answer, _ in on(script)] == [("FileNotFoundError", [1])] * 2


def test_what_is_guarded_is_not_said(on):
    def script(run, xyz):
        if run.world.rank == 0:
            xyz.past("model")

    assert on(script)[0][1] == []


def test_what_we_see_to_and_what_is_a_librarys_own_is_not_said(on):
    def script(run, xyz):
        os.makedirs("runs/a")
        Path("runs/b").write_text("b")
        number = os.open("runs/c", os.O_WRONLY | os.O_CREAT)
        os.close(number)
        os.rename("runs/b", "runs/d")
        os.remove("runs/d")
        xyz.cache()
        xyz.look("runs/c")
        with run.effects.context.internal():
            xyz.save(f"own/{run.world.rank}")

    assert on(script)[0][1] == []


def test_other_ways_to_change_the_disk_are_seen(on):
    def script(run, xyz):
        me = f"{run.world.rank}"
        io.FileIO(me, "w").close()
        sqlite3.connect(me + ".db").close()
        return sys._getframe().f_lineno

    (line, said), _ = on(script)
    assert [row.split(" past")[0] for row in said] == [
        f"[autoddp] train.py:{line - 2}: 0 is written",
        f"[autoddp] train.py:{line - 1}: 0.db is written",
    ]


def test_with_strict_it_is_refused_before_it_is_done(on, tmp_path):
    def script(run, xyz):
        if run.world.rank == 0:
            return None
        with run.effects.context.internal():
            os.makedirs("out")
            Path("out/model").write_text("as it was")
        return raised(lambda: xyz.past("out/model"))

    _, (one, _) = on(script, strict=True)
    assert one[0] == "BadInput"
    text = "out/model is written past Python's open: every rank does"
    assert one[1].endswith(text)
    assert (tmp_path / "work" / "out" / "model").read_text() == "as it was"


def test_a_rank_that_ends_early_is_waited_for_no_longer_than_it_takes_to_say_so(on):
    """Rank 0 has seen something, and the witness, which has not, is at its end."""

    def script(run, xyz):
        if run.world.rank == 0:
            xyz.past("model")
        return run.world.rank

    assert [answer for answer, _ in on(script, 3)] == [0, 1, 2]
