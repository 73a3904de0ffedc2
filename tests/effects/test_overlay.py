"""What a library does by itself is done once, and each rank sees what one process would see."""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from pathlib import Path

import pytest

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.library_files import Holders
from autoddp.effects.temporary import Temporary
from tests.effects import library
from tests.effects.outward import on_ranks
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.slow

FEATURES = (Files, Holders, Folders, Temporary)
LATE = 0.03  # seconds that a rank is late by, at each pause
OWN = re.compile(r"own-\d+")


def install(module, folder):
    """A module of ours as a package that is installed, as long as a fixture lasts."""
    package = folder / "site-packages"
    package.mkdir()
    name = "installed_" + module.__name__.rpartition(".")[2]
    (package / f"{name}.py").write_text(Path(module.__file__).read_text())
    sys.path.insert(0, str(package))
    yield importlib.import_module(name)
    sys.path.remove(str(package))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    yield from install(library, tmp_path_factory.mktemp("lib"))


def files(folder):
    """Everything below, by name: a folder, a link, a file's bytes, and how many names it has."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = OWN.sub("own", str(path.relative_to(folder)))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = (path.stat().st_nlink, path.read_bytes())
    return found


def alone(act, folder):
    """What one process gives."""
    folder.mkdir()

    def rank(group):
        os.chdir(folder)
        return act(lambda: None)

    return run_ranks(rank, 1)[0]


@pytest.mark.parametrize(("late", "nproc"), [("rank 0", 2), ("rank 1", 2), ("nobody", 3)])
@pytest.mark.parametrize("name", [pattern.__name__ for pattern in library.PATTERNS])
def test_a_library_finds_one_processs_world_and_leaves_one_processs_files(
    installed, tmp_path, name, late, nproc
):
    compared(getattr(installed, name), tmp_path, late, nproc)


def test_every_pattern_is_tried():
    own = {
        name
        for name, value in vars(library).items()
        if getattr(value, "__module__", "") == library.__name__
    }
    assert {p.__name__ for p in library.PATTERNS} == {
        name for name in own if not name.startswith("_")
    }


def compared(act, tmp_path, late, nproc):
    """`act` finds and leaves on ranks, of which one may be late, what it does on one process."""
    want = alone(act, tmp_path / "one")
    (tmp_path / "ranks").mkdir()

    def script(run):
        def pause():
            if late in ("rank 0", "rank 1") and run.world.rank == int(late[-1]):
                time.sleep(LATE)

        found = act(pause)
        run.group.barrier()
        return found

    assert on_ranks(script, nproc, *FEATURES, folder=tmp_path / "ranks") == [want] * nproc
    assert files(tmp_path / "ranks") == files(tmp_path / "one")
