"""Errors, modes of `open`, names, threads, children: what a library may do besides the usual."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.features import library_modes
from tests.features.outward import on_ranks
from tests.features.test_overlay import FEATURES, compared, install


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    yield from install(library_modes, tmp_path_factory.mktemp("lib"))


@pytest.mark.parametrize("late", ["nobody", "rank 0", "rank 1", "with answers", "with meetings"])
@pytest.mark.parametrize("name", [pattern.__name__ for pattern in library_modes.PATTERNS])
def test_a_library_finds_one_processs_world_whatever_it_does(installed, tmp_path, name, late):
    compared(getattr(installed, name), tmp_path, late, 2)


def test_a_thread_that_is_behind_finds_what_it_has_made_itself(installed, tmp_path):
    """Rank 1's thread begins when rank 0's has ended, and the script has gone on on both."""

    def script(run):
        os.mkdir("old")
        for name in ("removed", "renamed", "kept"):
            Path("old", name).write_text(name)
        found, go = [], threading.Event()
        worker = threading.Thread(target=lambda: (go.wait(), found.append(installed.by_a_thread("new"))))
        worker.start()
        if run.world.rank == 0:
            go.set()
            worker.join()
        for _ in range(3):
            run.effects.do_on_rank0("a meeting", lambda: None)
        go.set()
        worker.join()
        again = installed.entries("new"), installed.entries("old")
        run.effects.do_on_rank0("a meeting", lambda: None)
        return found, again, installed.entries("new")

    want = [["a", "b"], ["kept"], "renamed", "FileNotFoundError"]
    new = ["a", "b", "renamed"]
    assert on_ranks(script, 2, *FEATURES, folder=tmp_path) == [([want], (new, ["kept"]), new)] * 2


def test_what_the_script_has_changed_is_no_longer_a_threads(installed, tmp_path):
    """Of a folder that a thread has made, and that the script then writes to, removes and makes again."""

    def script(run):
        worker = threading.Thread(target=lambda: installed.by_a_thread("new", old=False))
        worker.start()
        worker.join()
        Path("new/more").write_text("of the script")
        found = [installed.entries("new"), installed.text("new/more")]
        shutil.rmtree("new")
        os.mkdir("new")
        found.append(installed.entries("new"))
        Path("new/a").write_text("again")
        return [*found, installed.entries("new"), installed.text("new/a")]

    want = [["a", "b", "more"], "of the script", [], ["a"], "again"]
    assert on_ranks(script, 2, *FEATURES, folder=tmp_path) == [want] * 2
