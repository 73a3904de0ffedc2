"""Installed as by pip, in a site-packages folder, autoddp is no library to the user's code."""

import shutil
from pathlib import Path

import pytest

from tests.support.cli import ROOT, run_python

pytestmark = pytest.mark.slow

SCRIPT = """
import os, time, uuid
from pathlib import Path
import numpy, torch
os.makedirs("runs/one")
with open("log.csv", "a") as log:
    log.write(f"{time.time()} {uuid.uuid4()}\\n")
Path("note.txt").write_text("done")
with open("log.csv", "a") as log:
    log.write("more\\n")
torch.save({"a": torch.ones(2)}, "runs/one/net.pt")
numpy.save("runs/one/a.npy", numpy.arange(2))
print(os.path.exists("runs/one/net.pt"), Path("log.csv").read_text().count("\\n"), \
sorted(os.listdir(".")))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The package where pip would put it."""
    folder = tmp_path_factory.mktemp("venv") / "lib" / "site-packages"
    shutil.copytree(Path(ROOT) / "autoddp", folder / "autoddp")
    return folder


def test_effects_happen_once(site, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["-m", "autoddp", "run", "-q", "--nproc", 2, "train.py"]
    done = run_python(*command, cwd=tmp_path, env={"PYTHONPATH": str(site)})
    assert done.rc == 0, done.err
    assert done.out == "True 2 ['log.csv', 'note.txt', 'runs', 'train.py']\n"
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 2
