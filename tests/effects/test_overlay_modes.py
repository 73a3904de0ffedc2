"""Errors, modes of `open`, names, threads, children: what a library may do besides the usual."""

from __future__ import annotations

import os
import posix
import threading
import time
from pathlib import Path

import pytest

from tests.effects import library_modes
from tests.effects.outward import on_ranks
from tests.effects.test_overlay import FEATURES, compared, install

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    yield from install(library_modes, tmp_path_factory.mktemp("lib"))


@pytest.mark.parametrize("late", ["rank 0", "rank 1"])
@pytest.mark.parametrize("name", [pattern.__name__ for pattern in library_modes.PATTERNS])
def test_a_library_finds_one_processs_world_whatever_it_does(installed, tmp_path, name, late):
    compared(getattr(installed, name), tmp_path, late, 2)


def test_a_thread_of_each_rank_finds_what_it_has_made_itself(installed, tmp_path):
    """No rank waits for another's thread; rank 0's alone is on the disk."""

    def script(run):
        os.mkdir("old")
        for name in ("removed", "renamed", "kept"):
            Path("old", name).write_text(name)
        found = []
        worker = threading.Thread(target=lambda: found.append(installed.by_a_thread("new")))
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
