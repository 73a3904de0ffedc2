"""Side effects of a library happen once, and each rank sees the files of one process."""

from __future__ import annotations

import importlib
import os
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


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the module `library` as a package."""
    package = tmp_path_factory.mktemp("lib") / "site-packages"
    package.mkdir()
    (package / "installed_library.py").write_text(Path(library.__file__).read_text())
    sys.path.insert(0, str(package))
    yield importlib.import_module("installed_library")
    sys.path.remove(str(package))


def files(folder):
    """All entries below a folder, by name: folders, links, bytes and link counts of files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = (path.stat().st_nlink, path.read_bytes())
    return found


def alone(act, folder):
    """The result of one process."""
    folder.mkdir()

    def rank(group):
        os.chdir(folder)
        return act(lambda: None)

    return run_ranks(rank, 1)[0]


@pytest.mark.parametrize(("late", "nproc"), [(0, 2), (1, 3)])
@pytest.mark.parametrize("name", [pattern.__name__ for pattern in library.PATTERNS])
def test_a_library_sees_and_leaves_the_files_of_one_process(installed, tmp_path, name, late, nproc):
    """Delay one rank."""
    act = getattr(installed, name)
    want = alone(act, tmp_path / "one")
    (tmp_path / "ranks").mkdir()

    def script(run):
        def pause():
            if run.world.rank == late:
                time.sleep(LATE)

        found = act(pause)
        run.group.barrier()
        return found

    assert on_ranks(script, nproc, *FEATURES, folder=tmp_path / "ranks") == [want] * nproc
    assert files(tmp_path / "ranks") == files(tmp_path / "one")
