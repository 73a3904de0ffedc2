"""A library's cache is a folder like any other: rank 0 fills it, under its locks; all read it."""

import os
import random
import tempfile
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.library_files import Holders
from autoddp.effects.temporary import Temporary
from tests.effects.outward import on_ranks

# Fills a folder as Hugging Face's `datasets` does, under a lock beside it: each shard gets a
# temporary name first, the folder another one; read back by memory maps.
CACHE = """
import contextlib, fcntl, os, shutil, tempfile
import numpy as np

@contextlib.contextmanager
def locked(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    fcntl.flock(number, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(number, fcntl.LOCK_UN)
        os.close(number)

def filled(folder, make, pause):
    with locked(folder + ".lock"):
        if not os.path.exists(folder):
            os.makedirs(draft := folder + ".incomplete", exist_ok=True)
            for shard in range(2):
                pause()
                with tempfile.NamedTemporaryFile("wb", dir=draft, delete=False) as file:
                    file.write(make(shard))
                shutil.move(file.name, f"{draft}/{shard}-of-N")
                os.rename(f"{draft}/{shard}-of-N", f"{draft}/{shard}")
            pause()
            os.rename(draft, folder)
    pause()
    return [np.memmap(f"{folder}/{shard}", np.uint8, "r").tolist() for shard in range(2)]
"""
# Keeps what it compiles for this rank.
COMPILER = """
import os

def kept(path, text, act=lambda: None):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        file.write(text)
    act()
"""


def package(name: str, source: str) -> types.SimpleNamespace:
    """A library, as if it were installed under this name."""
    space: dict = {}
    exec(compile(source, f"/x/site-packages/{name}/lib.py", "exec"), space)
    return types.SimpleNamespace(**space)


@pytest.fixture
def on(tmp_path):
    """`on(script, nproc)`: its results on ranks with a home of their own and a folder below it."""
    job = tmp_path / "home" / "job"
    job.mkdir(parents=True)

    def at_home(rank: int) -> None:
        os.environ.update(HOME=str(tmp_path / "home"), HF_HOME=str(job / "hf"))

    features = (Files, Folders, Holders, Temporary)
    return lambda script, nproc=2: on_ranks(script, nproc, *features, folder=job, before=at_home)


@pytest.mark.parametrize("state", ["cold", "half-built", "warm"])
@pytest.mark.parametrize("cache", ["~/.cache/huggingface/datasets", "hf/datasets", "~/.keras"])
def test_rank_0_fills_a_cache_that_all_ranks_read(on, tmp_path, cache, state):
    library = package("datasets", CACHE)

    def script(run):
        made, late = [], random.Random(run.world.rank)
        folder = os.path.expanduser(f"{cache}/csv")

        def make(shard):
            made.append(shard)
            return bytes([shard, os.getpid() % 256])

        def pause():
            time.sleep(late.random() / 50)

        if state == "half-built":
            os.makedirs(f"{folder}.incomplete")
            Path(f"{folder}.incomplete/0-of-N").write_bytes(b"half")
        if state == "warm":
            library.filled(folder, make, pause)
            made.clear()
        read = library.filled(folder, make, pause)
        return made, read, [np.fromfile(f"{folder}/{n}", np.uint8).tolist() for n in range(2)]

    zero, *others = on(script, 3)
    assert others == [zero] * 2
    made, read, found = zero
    assert made == ([] if state == "warm" else [0, 1])
    assert read == found
    assert [len(shard) for shard in read] == [2, 2]
    left = {path.name for path in (tmp_path / "home").rglob("*") if path.is_file()}
    assert left == {"0", "1", "csv.lock"}


def test_a_thread_fills_a_cache_on_rank_0_and_in_private_on_others(on, tmp_path):
    library = package("datasets", CACHE)

    def script(run):
        folder, rank, read = os.path.expanduser("~/.cache/xyz/csv"), run.world.rank, []

        def wait(there):
            """Rank 1 makes its folder while rank 0's is there, and writes to it after that."""
            end = time.monotonic() + 20
            with run.effects.context.internal():
                while os.path.exists(f"{folder}.incomplete") != there and time.monotonic() < end:
                    time.sleep(0.01)

        def fill():
            if rank:
                wait(there=True)
            pause = (lambda: wait(there=False)) if rank else (lambda: time.sleep(0.2))
            read.extend(library.filled(folder, lambda n: bytes([n, rank]), pause))

        thread = threading.Thread(target=fill)
        thread.start()
        thread.join()
        return read

    assert [shard[0] for shard in on(script)[1]] == [0, 1]
    assert (tmp_path / "home/.cache/xyz/csv/1").read_bytes() == bytes([1, 0])


@pytest.mark.parametrize("name", ["triton", "torch/_inductor", "numba", "multiprocess"])
def test_what_a_compiler_or_a_pool_keeps_is_each_ranks_own(on, tmp_path, name):
    compiler = package(name, COMPILER)

    def script(run):
        rank = run.world.rank
        if rank:  # alone: the other rank need not compile
            compiler.kept(f"kernels/{rank}", "one")
        run.group.call("both ranks", lambda: None)
        compiler.kept("kernels/both", f"{rank}")
        # code of the script's that it calls is not the compiler's
        compiler.kept("kernels/2", "", lambda: Path("script").write_text(f"{rank}"))
        return Path("script").read_text()

    assert on(script) == ["0", "0"]
    kept = tmp_path / "home/job/kernels"
    assert (kept / "1").read_text() == "one"
    assert sorted((kept / "both").read_text()) == ["0", "1"]
    assert (tmp_path / "home/job/script").read_text() == "0"


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name are Linux's")
def test_a_file_without_a_name_is_each_ranks_own(on, tmp_path):
    def script(run):
        os.makedirs("made")
        number = os.open("made", os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
        os.write(number, b"%d" % run.world.rank)
        read = os.pread(number, 9, 0), os.fstat(number).st_nlink
        os.close(number)
        with tempfile.TemporaryFile(dir="made") as file:
            file.write(b"x")
        os.rmdir("made")
        return read

    assert on(script) == [(b"0", 0), (b"1", 0)]
    assert list((tmp_path / "home/job").iterdir()) == []
