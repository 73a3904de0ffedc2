"""Errors, modes of `open`, names, threads, children: what a library may do besides the usual."""

from __future__ import annotations

import io
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.effects import library_modes
from tests.effects.outward import on_ranks
from tests.effects.test_overlay import FEATURES, compared, install

pytestmark = pytest.mark.slow


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
        worker = threading.Thread(
            target=lambda: (go.wait(), found.append(installed.by_a_thread("new")))
        )
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
    """A folder that a thread has made, and the script then writes to, removes and makes again."""

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


def test_what_a_thread_makes_beside_the_scripts_own_stays_its_ranks(installed, tmp_path):
    """The script saves in a folder of a thread's; rank 0's thread goes on, and is ahead."""

    def script(run):
        go, seen = threading.Event(), []

        def work():
            installed.by_a_thread("new", old=False)
            go.wait()
            seen.append(installed.by_a_thread("new/late", old=False))

        worker = threading.Thread(target=work)
        worker.start()
        while len(installed.entries("new") if installed.there("new") else ()) < 2:
            time.sleep(0.01)
        Path("new/mine").write_text("of the script")
        if run.world.rank == 0:
            go.set()
            worker.join()
        run.effects.do_on_rank0("a meeting", lambda: None)
        early = installed.entries("new")
        os.remove("new/mine")
        found = installed.there("new/mine")
        go.set()
        worker.join()
        return early, found, seen, installed.entries("new")

    zero, one = on_ranks(script, 2, *FEATURES, folder=tmp_path)
    assert zero == (["a", "b", "late", "mine"], False, [[]], ["a", "b", "late"])
    assert one == (["a", "b", "mine"], False, [[]], ["a", "b", "late"])


def test_what_a_library_removes_after_a_thread_and_the_script_had_it_was_there_before(
    installed, tmp_path
):
    """Rank 0 has removed it already where rank 1 still reads it."""

    def script(run):
        worker = threading.Thread(target=lambda: installed.by_a_thread("new", old=False))
        worker.start()
        worker.join()
        Path("new/a").write_text("of the script")
        run.effects.do_on_rank0("a meeting", lambda: None)
        assert installed.text("new/a") == "of the script"  # by now it is rank 0's
        run.group.barrier()
        if run.world.rank == 0:
            installed.remove("new/a")
        run.group.barrier()
        found = installed.text("new/a") if run.world.rank else "of the script"
        run.group.barrier()  # until then rank 0 keeps what was there
        return found

    assert on_ranks(script, 2, *FEATURES, folder=tmp_path) == ["of the script"] * 2


def test_what_a_thread_makes_anew_where_the_script_has_removed_it_stays_its_ranks_too(
    installed, tmp_path
):
    """Rank 1 hears late that the script has removed it: rank 0's thread makes the next one."""

    def script(run):
        found, met = [], run.effects.scratch.met
        run.effects.scratch.met = lambda path: (time.sleep(0.3), met(path))
        for _ in range(2):
            go = threading.Event()
            worker = threading.Thread(
                target=lambda go: (go.wait(), found.append(installed.by_a_thread("new", False))),
                args=(go,),
            )
            worker.start()
            if run.world.rank == 0:
                go.set()
                worker.join()
            run.effects.do_on_rank0("a meeting", lambda: None)
            go.set()
            worker.join()
            shutil.rmtree("new")
        return found

    assert on_ranks(script, 2, *FEATURES, folder=tmp_path) == [[[], []]] * 2


class SlowFile(io.BytesIO):
    """A file that takes a while to read."""

    def read(self, *size):
        time.sleep(0.05)
        return super().read(*size)


def test_an_open_file_is_loaded_only_once_while_rank_0_moves_on(installed, tmp_path):
    """Another load would begin where the first one ended; only a named file is opened again."""

    def script(run):
        buffer, over = io.BytesIO(), threading.Event()
        torch.save({"a": 3}, buffer)
        installed.by_a_thread("new", old=False)

        def work():
            names = ["a", "c"]
            while run.world.rank == 0 and not over.wait(0.005):
                os.rename(*(f"new/{name}" for name in names))
                names.reverse()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            run.group.barrier()
            return torch.load(SlowFile(buffer.getvalue()))
        finally:
            over.set()
            worker.join()

    assert on_ranks(script, 2, *FEATURES, folder=tmp_path) == [{"a": 3}] * 2
