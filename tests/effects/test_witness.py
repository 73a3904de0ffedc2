"""Writes that bypass the patches are reported once for each line of the user's code."""

import io
import os
import sys
import tempfile
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
import io

def past(path):
    io.FileIO(path, "w").close()
"""


@pytest.fixture
def on(tmp_path):
    """`on(script)`: the lines of rank 0 after `script(run, xyz)`; xyz is an installed package."""
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
            xyz.past("after")  # nobody looks any more
            return answer, report.stream.getvalue().replace(
                "test_witness.py", "train.py"
            ).splitlines()

        return run_ranks(rank, nproc, timeout=240)

    return on


def test_writes_that_bypass_pythons_open_are_reported_once_per_line(on):
    def script(run, xyz):
        for step in range(3):
            xyz.past(f"{run.world.rank}{step}")
        xyz.past("b")
        return sys._getframe().f_lineno

    (line, said), *others = on(script, 3)
    assert said == [
        f"[autoddp] train.py:{line - 2}: every rank writes 00, as this bypasses Python's open",
        f"[autoddp] train.py:{line - 1}: every rank writes b, as this bypasses Python's open",
    ]
    assert [said for _, said in others] == [[], []]


def test_a_file_opened_by_an_opener_is_not_reported(on):
    """As `tempfile` does, which names the folder to `open` and the file to its opener."""

    def script(run, xyz):
        def opener(path, flags):
            return os.open(f"{path}-inner", flags)

        with open("outer", "w", opener=opener) as file:
            file.write("0")
        os.makedirs("cache")
        with tempfile.NamedTemporaryFile("w", dir="cache", delete=False) as file:
            file.write("a")
        io.FileIO("cache", "w", opener=lambda path, flags: os.open(f"{path}/b", flags)).close()
        return Path("outer-inner").read_text(), len(os.listdir("cache"))

    assert on(script) == [(("0", 2), [])] * 2


def test_strict_raises_before_such_a_write(on, tmp_path):
    def script(run, xyz):
        if run.world.rank == 0:
            return None
        with run.effects.context.internal():
            os.makedirs("out")
            Path("out/model").write_text("as it was")
        return raised(lambda: xyz.past("out/model"))

    _, (one, _) = on(script, strict=True)
    assert one[0] == "BadInput"
    text = "every rank writes out/model, as this bypasses Python's open"
    assert one[1].endswith(text)
    assert (tmp_path / "work" / "out" / "model").read_text() == "as it was"
