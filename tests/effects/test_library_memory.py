"""A library finds on each rank what it has made there: by other processes, in caches of its own."""

from __future__ import annotations

import os
import time

import pytest

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.temporary import Temporary
from tests.effects.outward import on_ranks
from tests.effects.test_libraries import library

pytestmark = pytest.mark.slow


@pytest.fixture
def on(tmp_path):
    """`on(script)`: what it returns on 3 ranks, run in tmp_path."""

    def run(script, **more):
        return on_ranks(script, 3, Files, Folders, Temporary, folder=tmp_path, **more)

    return run


def test_processes_that_a_library_forks_see_what_their_rank_has_done_and_do_it_for_it(on, tmp_path):
    """What a child writes is its rank's own: the ranks' children differ here as none should."""
    forking = """
import multiprocessing

def process(act):
    one = multiprocessing.get_context("fork").Process(target=act)
    one.start()
    one.join()

def parts(rank):
    open("before", "w").write(f"before {rank}")
    process(lambda: open("part", "w").write(open("before").read() + f", part {rank}"))
    process(lambda: open("copy", "w").write(open("part").read() + f", copy {rank}"))
    return open("copy").read()
"""
    parts = library(tmp_path, forking)["parts"]
    told = on(lambda run: parts(run.world.rank))
    assert told == [f"before {rank}, part {rank}, copy {rank}" for rank in range(3)]
    assert (tmp_path / "copy").read_text() == told[0]


@pytest.mark.parametrize(
    "folder", ["xyz", "~/.cache/xyz", "~/.cache/huggingface/datasets/generator"]
)
def test_a_cache_of_what_the_script_computes_is_as_one_process_finds_it(on, tmp_path, folder):
    memory = """
import os

def remembered(path, act):
    path = os.path.expanduser(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path):
        act()
        open(path, "w").close()
"""
    remembered = library(tmp_path, memory)["remembered"]

    def script(run):
        called = []
        for _ in range(2):
            time.sleep(0.1 * run.world.rank)
            remembered(f"{folder}/kept", lambda: called.append(1))
            remembered(f"{folder}/kept", lambda: called.append(2))
            os.remove(os.path.expanduser(f"{folder}/kept"))
        return called

    def at_home(rank):
        os.environ["HOME"] = str(tmp_path / "home")

    assert on(script, before=at_home) == [[1, 1]] * 3
