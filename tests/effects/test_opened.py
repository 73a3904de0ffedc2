# ruff: noqa: SIM115 - scripts leave files open, and that is what is tested
import bz2
import contextlib
import csv
import fcntl
import gc
import gzip
import io
import json
import logging
import logging.handlers
import lzma
import os
import pickle
import shutil
import stat
import tarfile
import tempfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.temporary import Temporary
from tests.effects.full import mounted, rationed
from tests.effects.outward import on_ranks, raised

FULL = "[Errno 28] No space left on device"
OPEN = (Files, Folders, Temporary)
BIG = 100_000  # bytes, more than fits


@pytest.fixture
def on(tmp_path):
    """`on(script)`: what it returns on 2 ranks, run in tmp_path."""
    return lambda script, nproc=2, **kw: on_ranks(script, nproc, *OPEN, folder=tmp_path, **kw)


@pytest.fixture
def small(tmp_path):
    """`tmp_path / "small"` has room for 64 KB."""
    with mounted(tmp_path / "small") as folder:
        yield folder


# ---- what is written, and how it is opened


def write_in_every_way(folder):
    """What one process writes."""
    os.makedirs(folder)
    os.chdir(folder)
    with open("text", "w", encoding="utf-16", newline="\r\n") as file:
        print("a\nä", file=file)
    with open("text", "a", encoding="utf-16", newline="\r\n") as file:
        file.write("more\n")
    with open("errors", "w", encoding="ascii", errors="replace") as file:
        file.write("ä")
    with open("bare", "wb", buffering=0) as file:
        file.write(b"one")
        file.write(bytearray(b"two"))
    with open("lines", "w", buffering=1) as file:
        file.write("1\n2")
        file.writelines(["3", "4\n"])
    with open("back", "w+") as file:
        file.write("0123456789")
        file.seek(4)
        file.write("x" + file.read(2))
        file.truncate(8)
    with open("back", "r+b", buffering=4) as file:
        file.seek(1)
        file.write(b"bc")
        again = file.read(2)
    with open("back", "a+b") as file:
        file.write(again)
    with open("private", "x", opener=lambda path, flags: os.open(path, flags, 0o640)) as file:
        file.write("p")
    with io.open("io", "wt") as file:  # noqa: UP020
        file.write("io")
    with Path("path").open("wb") as file:
        pickle.dump([1, "a"], file)
    Path("bytes").write_bytes(b"\0\1")
    with open("table.csv", "w", newline="") as file:
        csv.writer(file).writerows([[1, "a,b"], [2, 'c"']])
    with open(b"json", "w") as file:
        json.dump({"a": [1]}, file)
    with open("copy", "wb") as file, open("bytes", "rb") as source:
        shutil.copyfileobj(source, file)
    with open("sent", "wb") as file, open("bytes", "rb") as source:
        os.sendfile(file.fileno(), source.fileno(), 0, 2)
    with open("ranged", "wb") as file, open("bytes", "rb") as source:
        os.copy_file_range(source.fileno(), file.fileno(), 2)
    with open("array", "wb") as file:
        np.arange(3).tofile(file)
        np.save(file, np.arange(2))
        torch.save(1, file)


def pack_in_every_way():
    """Archives name no time, so that they are the same from run to run."""
    with gzip.GzipFile("z.gz", "wb", mtime=0) as file:
        file.write(b"gz")
    with bz2.open("z.bz2", "wt") as file:
        file.write("bz2")
    with lzma.open("z.xz", "wb") as file:
        file.write(b"xz")
    with zipfile.ZipFile("z.zip", "w") as file:
        file.writestr(zipfile.ZipInfo("a"), "zip")
    with zipfile.ZipFile("z.zip", "a") as file:
        file.writestr(zipfile.ZipInfo("b"), "more")
    with tarfile.open("z.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as file:
        file.addfile(tarfile.TarInfo("a"), io.BytesIO(b""))
    Path("z.tar.gz").write_bytes(gzip.decompress(Path("z.tar.gz").read_bytes()))


def contents(folder):
    """Of every file, its mode and bytes."""
    files = sorted(p for p in Path(folder).rglob("*") if p.is_file())
    return {p.name: (oct(stat.S_IMODE(p.stat().st_mode)), p.read_bytes()) for p in files}


def test_whatever_a_script_writes_has_the_bytes_of_one_process_and_each_rank_reads_them(
    on, tmp_path
):
    def script(run):
        write_in_every_way("ranks")
        pack_in_every_way()
        return {name: Path(name).read_bytes() for name in sorted(os.listdir())}

    was = os.getcwd()
    os.chdir(tmp_path)
    try:
        write_in_every_way("one")
        pack_in_every_way()
    finally:
        os.chdir(was)
    zero, one = on(script)
    assert contents(tmp_path / "ranks") == contents(tmp_path / "one")
    assert zero == one == {name: data for name, (_, data) in contents(tmp_path / "one").items()}


def test_an_open_file_looks_as_one_of_pythons(on, tmp_path):
    def seen(kind):
        made = []
        for mode, size in (("w", -1), ("x", 1), ("wb", -1), ("r+b", -1), ("ab", 0), ("w+", -1)):
            name = f"{kind}{mode.replace('+', 'p')}"
            if mode[0] == "r":
                Path(name).write_text("abc")
            with open(name, mode, size) as file:
                layers = [
                    isinstance(file, k) for k in (io.TextIOBase, io.BufferedIOBase, io.RawIOBase)
                ]
                made.append(
                    [
                        *layers,
                        type(file).__mro__[2].__name__ in repr(file),
                        file.mode,
                        file.name == name,
                    ]
                )
                made[-1] += [
                    file.tell(),
                    file.seekable(),
                    file.readable(),
                    getattr(file, "newlines", 0),
                ]
                made[-1] += [file.fileno() > 2, repr(file).replace(name, "")[:12]]
                made[-1] += [getattr(file, "encoding", 0), getattr(file, "line_buffering", 0)]
            made[-1] += [
                file.closed,
                raised(lambda f=file: f.flush()),
                raised(lambda f=file: f.write("a")),
            ]
        return [row[:3] + row[4:] for row in made]

    was = os.getcwd()
    os.chdir(tmp_path)
    try:
        plain = seen("plain")
    finally:
        os.chdir(was)
    assert on(lambda run: seen("r")) == [plain] * 2


# ---- what fails


def torch_save(path):
    torch.save(torch.zeros(BIG), path)


def numpy_save(path):
    np.save(path, np.zeros(BIG))


def write_and_close(path):
    with open(path, "w") as file:
        file.write("x" * BIG)


def write_bytes(path):
    Path(path).write_bytes(bytes(BIG))


def dump(path):
    with open(path, "wb") as file:
        pickle.dump(bytes(BIG), file)


@pytest.mark.parametrize("act", [torch_save, numpy_save, write_and_close, write_bytes, dump])
def test_a_full_disk_raises_on_all_ranks_at_the_same_line(on, small, act):
    (small / "old").write_text("old")

    def script(run):
        said = raised(lambda: act("small/new"))
        after = os.listdir("small") if act in (torch_save, numpy_save) else ["old"]
        os.makedirs("goes/on")
        return said, after

    zero, one = on(script)
    assert zero == one
    (kind, text), after = zero
    plain = raised(lambda: act(small / "plain"))
    assert kind == plain[0] == ("RuntimeError" if act is torch_save else "OSError")
    if kind == "OSError":
        assert text == plain[1].replace("plain", "new")
    assert after == ["old"]


def test_a_quota_that_is_used_up_is_the_error_of_one_process_and_leaves_the_old_checkpoint(
    on, tmp_path
):
    """Where it is found out is up to the file system: a draft's space may not be free at once."""
    with rationed(tmp_path / "rationed") as folder:
        torch.save(torch.arange(3), folder / "best.pt")

        def script(run):
            def save():
                with open(folder / "best.pt.new", "wb") as file:
                    file.write(os.urandom(3 * 2**20))

            large = torch.randn(2**20)
            said = raised(lambda: torch.save(large, folder / "best.pt")), raised(save)
            return said, torch.load(folder / "best.pt").tolist(), set(os.listdir(folder))

        zero, one = on(script)
    assert zero == one
    (checkpoint, (kind, text)), old, names = zero
    assert checkpoint[0] == "RuntimeError"
    assert kind == "OSError"
    assert text.startswith("[Errno 122] Disk quota exceeded")
    assert old == [0, 1, 2]
    assert names <= {"best.pt", "best.pt.new"}, "nothing of ours beside them"


def test_a_folder_that_finds_no_room_is_missing_for_all(on, tmp_path):
    with mounted(tmp_path / "few", "nr_inodes=3"):
        text = "[Errno 28] No space left on device: 'few/a/b/c'"
        assert on(lambda run: raised(lambda: os.makedirs("few/a/b/c"))) == [("OSError", text)] * 2


def test_a_full_disk_that_is_found_at_a_close_raises_on_all_ranks(on, small):
    def script(run):
        log = open("small/log", "w")
        log.write("y" * 5000)
        if run.world.rank == 0:
            with run.effects.context.internal(), open("small/ballast", "wb", buffering=0) as file:
                while file.write(bytes(1000)) == 1000:
                    pass
        return raised(log.close)

    assert on(script) == [("OSError", FULL)] * 2


def test_a_folder_that_may_not_be_written_refuses_all_ranks_alike(on, tmp_path):
    with mounted(tmp_path / "locked", "ro"):
        (tmp_path / "file").write_text("f")
        acts = [
            lambda: open("locked/x", "w"),
            lambda: os.mkdir("locked/d"),
            lambda: os.makedirs("file/below"),
            lambda: np.save("locked/a.npy", np.zeros(1)),
            lambda: open("file/below", "w"),
            lambda: Path("locked").write_text("a"),
            lambda: open("locked/x", "r+"),
            lambda: open("nul\0", "w"),
            lambda: open("file", "w", foo=1),
            lambda: open("file", "w", encoding="none"),
            lambda: open("file", "wb", encoding="utf-8"),
            lambda: os.utime("absent"),
            lambda: os.mkfifo("file"),
            lambda: os.chown("absent", 0, 0),
        ]
        os.chdir(tmp_path)
        plain = [raised(act) for act in acts]
        (tmp_path / "file").write_text("f")
        zero, one = on(lambda run: [raised(act) for act in acts])
        assert zero == one
        assert [said for said in zero if not said[0]] == []
        assert zero == plain
    assert sorted(os.listdir(tmp_path)) == ["file", "locked"]


def test_no_room_for_the_copies_of_another_rank_ends_the_job_with_the_way_out(on, tmp_path):
    with mounted(tmp_path / "tmp"):

        def crowded(rank):
            import tempfile

            tempfile.tempdir = str(tmp_path / "tmp") if rank else None

        def script(run):
            try:
                with open("big", "w") as file:
                    file.write("x" * BIG)
            except OSError:
                return "handled"  # and so apart from rank 0
            return "done"

        with pytest.raises(
            AssertionError, match=r"rank 1 cannot keep its copy of .*/big: No space left .* TMPDIR"
        ):
            on(script, before=crowded)


# ---- threads, and the collector of cycles


def test_files_that_ranks_collect_at_different_moments_neither_hang_nor_disagree(on, tmp_path):
    class Logger:
        def __init__(self, path):
            self.file, self.me = open(path, "w"), self
            self.file.write("said")

        def __del__(self):
            self.file.write(", done")
            self.file.close()
            os.makedirs("from/del", exist_ok=True)

    def script(run):
        gc.disable()
        Logger("a")
        if run.world.rank:
            gc.collect()
        Path("between").write_text("b")
        if run.world.rank == 0:
            gc.collect()
        Path("after").write_text("c")
        gc.enable()
        return os.path.exists("a")

    assert on(script, 3) == [True] * 3
    assert (tmp_path / "a").read_text() == "said, done"
    assert (tmp_path / "from/del").is_dir()


def test_a_file_closes_by_its_close_alone(on, tmp_path):
    """`atexit.register(file.close)`, `stack.callback(file.close)`."""

    def script(run):
        with contextlib.ExitStack() as stack:
            file = open("x", "w")
            stack.callback(file.close)
            write = file.write
            del file
            write("held")
        return Path("x").read_text()

    assert on(script) == ["held"] * 2


def test_a_thread_writes_on_rank_0_and_nobody_waits(on, tmp_path):
    def script(run):
        log, done = open("log", "w"), []

        def work():
            for step in range(20):
                print(step, file=log, flush=True)
            with open("own", "w") as own:
                own.write("t")
            done.append(open("own").read())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        log.close()
        return done, len(Path("log").read_text().split())

    assert on(script) == [(["t"], 20)] * 2
    assert (tmp_path / "own").read_text() == "t"


def test_copies_of_what_is_on_the_disk_for_all_are_deleted(on, tmp_path):
    def script(run):
        for number in range(3):
            for path in ("state", f"state-{number}"):
                with open(path, "wb") as file:
                    file.write(bytes(1000))
        open("dropped", "w").write("x")
        os.rename("dropped", "renamed")
        kept = Path("renamed").read_text()
        os.remove("renamed")
        with run.effects.context.internal():
            walk = os.walk(run.effects.overlay.place())
            left = [name for _, _, names in walk for name in names]
        return kept, left, [os.path.getsize(name) for name in ("state", "state-0", "state-2")]

    assert on(script) == [("x", [], [1000] * 3)] * 2


def test_rotating_logs_rotate_once(on, tmp_path):
    def script(run):
        log = logging.getLogger("rotating")
        log.propagate = False
        handler = logging.handlers.RotatingFileHandler("log", maxBytes=60, backupCount=2)
        log.addHandler(handler)
        for step in range(10):
            log.warning("record number %d", step)
        handler.close()
        return {name: Path(name).read_text() for name in sorted(os.listdir())}

    zero, one = on(script)
    assert zero == one
    assert list(zero) == ["log", "log.1", "log.2"]
    assert zero["log"].endswith("number 9\n")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == zero


def test_a_lock_that_another_program_holds_is_held_for_all_ranks(on, tmp_path):
    with open(tmp_path / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def script(run):
            with open("lock", "a") as lock, open("free", "w") as free:
                fcntl.lockf(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return raised(lambda: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB))

        want = ("BlockingIOError", "[Errno 11] Resource temporarily unavailable")
        assert on(script) == [want] * 2


def test_when_a_log_is_rotated_rank_0_tells(on, tmp_path):
    def script(run):
        apart = logging.Formatter(f"%(message)s {'x' * run.world.rank}")
        by_time = logging.handlers.TimedRotatingFileHandler("timed", when="H")
        by_size = logging.handlers.RotatingFileHandler("sized", maxBytes=39, delay=True)
        by_size.backupCount = 9
        log = logging.getLogger("rotating")
        log.propagate = False
        for handler in (by_time, by_size):
            handler.setFormatter(apart)
            log.addHandler(handler)
        for step in range(6):
            # rank 0's comes last, between two records
            by_time.rolloverAt = 0 if step == 2 + 2 * (run.world.rank == 0) else 1 << 40
            log.warning("record %d", step)
        for handler in (by_time, by_size):
            handler.close()
        timed, old = sorted(p for p in os.listdir() if p.startswith("timed"))
        return Path(timed).read_text(), Path(old).read_text(), sorted(os.listdir())[:2]

    zero, one = on(script)
    assert zero == one
    assert zero[0].split()[1::2] == ["4", "5"]
    assert zero[1].split()[1::2] == ["0", "1", "2", "3"]
    assert zero[2] == ["sized", "sized.1"]
    assert (tmp_path / "sized").read_text().split()[1::2] == ["3", "4", "5"]


# ---- descriptors


def test_what_is_written_by_descriptors_is_one_file_for_all(on, tmp_path):
    def script(run):
        number = os.open("a", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        os.write(number, b"one")
        os.writev(number, [b"two", b"three"])
        os.pwrite(number, b"O", 0)
        os.fsync(number)
        os.close(number)
        with os.fdopen(os.open("b", os.O_RDWR | os.O_CREAT | os.O_TRUNC), "w+") as file:
            file.write("text")
        with open(os.open("b", os.O_WRONLY | os.O_APPEND), "a", closefd=True) as file:
            print("more", file=file, flush=True)
        folder = os.open(".", os.O_RDONLY)
        number = os.open("c", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
        os.write(number, b"below")
        os.ftruncate(number, 3)
        os.fsync(folder)
        os.close(number)
        os.close(folder)
        number, name = tempfile.mkstemp(dir=".")
        with os.fdopen(number, "w") as file:
            file.write("whole")
        os.replace(name, "d")
        number = os.open("a", os.O_RDONLY)
        back = os.read(number, 100)
        os.close(number)
        refused = raised(lambda: os.open("a", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        return back, refused, [Path(name).read_text() for name in "abcd"]

    texts = ["Onetwothree", "textmore\n", "bel", "whole"]
    refused = ("FileExistsError", "[Errno 17] File exists: 'a'")
    assert on(script, 3) == [(b"Onetwothree", refused, texts)] * 3
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == dict(
        zip("abcd", texts, strict=True)
    )
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_names_are_changed_once_in_every_way(on, tmp_path):
    def script(run):
        Path("a").write_text("a")
        os.truncate("a", 0)
        os.utime("a", (1, 2))
        os.chown("a", os.getuid(), os.getgid())
        os.mkfifo("pipe")
        return os.stat("a").st_mtime, Path("pipe").is_fifo(), raised(lambda: os.mkfifo("pipe"))[0]

    assert on(script) == [(2.0, True, "FileExistsError")] * 2
