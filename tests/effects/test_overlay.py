"""What a library does by itself is done once, and each rank sees what one process would see."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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
    """The module `library` as a package that is installed."""
    package = tmp_path_factory.mktemp("lib") / "site-packages"
    package.mkdir()
    (package / "installed_library.py").write_text(Path(library.__file__).read_text())
    sys.path.insert(0, str(package))
    yield importlib.import_module("installed_library")
    sys.path.remove(str(package))


def files(folder):
    """Everything below, by name: a folder, a link, a file's bytes, and how many names it has."""
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
    """What one process gives."""
    folder.mkdir()

    def rank(group):
        os.chdir(folder)
        return act(lambda: None)

    return run_ranks(rank, 1)[0]


@pytest.mark.parametrize(("late", "nproc"), [(0, 2), (1, 3)])
@pytest.mark.parametrize("name", [pattern.__name__ for pattern in library.PATTERNS])
def test_a_library_finds_one_processs_world_and_leaves_one_processs_files(
    installed, tmp_path, name, late, nproc
):
    """One rank is late."""
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


def by_a_thread():
    """What a thread finds of what it makes, renames and removes; no pattern: ranks are apart."""
    os.makedirs("new/sub")
    Path("new/a").write_text("a")
    with open("new/a", "a") as file:
        file.write("+")
    os.rename("new/a", "new/sub/b")
    os.rename("old/renamed", "new/renamed")
    Path("new/scratch").write_text("x")
    for name in ("new/scratch", "old/removed"):
        os.remove(name)
    shutil.copytree("new/sub", "new/copy")
    shutil.rmtree("new/sub")
    os.symlink("copy", "new/link")
    texts = [Path(name).read_text() for name in ("new/copy/b", "new/renamed", "new/link/b")]
    return texts, {"kept"} & {*os.listdir("old")}, {"copy", "link"} - {*os.listdir("new")}


@pytest.mark.parametrize("late", [0, 1])
def test_a_thread_of_each_rank_finds_what_it_has_made_itself(tmp_path, late):
    """No rank waits for another's thread; rank 0's alone is on the disk."""

    def script(run):
        os.mkdir("old")
        for name in ("removed", "renamed", "kept"):
            Path("old", name).write_text(name)
        time.sleep(0.5 * (run.world.rank == late))
        with ThreadPoolExecutor() as threads:
            return threads.submit(by_a_thread).result()

    want = ["a+", "renamed", "a+"], {"kept"}, set()
    assert on_ranks(script, 2, *FEATURES, folder=tmp_path) == [want] * 2
    left = sorted(path.name for path in tmp_path.rglob("*"))
    assert left == ["b", "copy", "kept", "link", "new", "old", "renamed"]
