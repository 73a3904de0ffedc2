"""What a library does by itself is done once, and each rank sees what one process would see."""

from __future__ import annotations

import importlib
import os
import posix
import re
import sys
import threading
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


def by_a_thread(top, old=True):
    """What a thread finds of files it makes, renames and removes; no pattern: ranks are apart."""
    os.makedirs(top)
    for name in ("a", "b"):
        with open(f"{top}/{name}", "x") as file:
            file.write(name)
    if not old:
        return []
    found = [sorted(os.listdir(top))]
    os.remove("old/removed")
    os.rename("old/renamed", f"{top}/renamed")
    found += [sorted(os.listdir("old")), Path(f"{top}/renamed").read_text()]
    try:
        os.remove("old/removed")
    except OSError as error:
        found.append(type(error).__name__)
    return found


def test_a_thread_of_each_rank_finds_what_it_has_made_itself(installed, tmp_path):
    """No rank waits for another's thread; rank 0's alone is on the disk."""

    def script(run):
        os.mkdir("old")
        for name in ("removed", "renamed", "kept"):
            Path("old", name).write_text(name)
        found = []
        worker = threading.Thread(target=lambda: found.append(by_a_thread("new")))
        worker.start()
        worker.join()
        return found

    for ((first, *rest),) in on_ranks(script, 2, *FEATURES, folder=tmp_path):
        assert set(first) - {"renamed"} == {"a", "b"}  # rank 0's thread may be further
        assert rest == [["kept"], "renamed", "FileNotFoundError"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "a",
        "b",
        "kept",
        "new",
        "old",
        "renamed",
    ]


def test_what_rank_0s_thread_was_quicker_to_rename_is_found_in_a_folder_of_ones_own(
    installed, tmp_path
):
    """Rank 1 has made `new` before rank 0, and sees nothing that rank 0 puts into it."""

    def script(run):
        Path("old").write_text("content")
        found = []

        def work():
            mine = run.group.rank
            if mine:
                os.mkdir("new")
                posix.mkdir("made")
            wait_until(lambda: os.access("gone" if mine else "made", os.F_OK))
            if not mine:
                os.mkdir("new")
            os.rename("old", "new/renamed")
            if not mine:
                posix.mkdir("gone")
            found.append(Path("new/renamed").read_text())

        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
        return found

    assert on_ranks(script, 2, *FEATURES, folder=tmp_path) == [["content"]] * 2


def wait_until(there):
    """Wait for what another rank's thread does."""
    while not there():
        time.sleep(0.01)
