# ruff: noqa: SIM115 - scripts leave files open, and that is what is tested
import glob
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
import torch

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.temporary import Temporary
from tests.effects.outward import on_ranks, raised


@pytest.fixture
def on(tmp_path):
    """`on(script)`: what it returns on 2 ranks, run in tmp_path."""
    return lambda script, nproc=2, **kw: on_ranks(
        script, nproc, Files, Folders, Temporary, folder=tmp_path, **kw
    )


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_folder_that_must_not_exist_is_made_once(on, tmp_path, nproc):
    def script(run):
        os.makedirs("runs/1", exist_ok=False)
        Path("a/b").mkdir(parents=True)
        Path("a/b").mkdir(exist_ok=True)
        if not os.path.exists("c"):
            time.sleep(0.05 * run.world.rank)
            os.mkdir("c")
        return [
            raised(act) for act in (lambda: os.makedirs("runs/1"), lambda: os.mkdir("no/where"))
        ]

    expected = [
        ("FileExistsError", "[Errno 17] File exists: 'runs/1'"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'no/where'"),
    ]
    assert on(script, nproc) == [expected] * nproc
    assert (tmp_path / "runs/1").is_dir()
    assert (tmp_path / "a/b").is_dir()


def test_the_next_free_run_folder_is_the_same_on_all_ranks(on, tmp_path):
    def script(run):
        time.sleep(0.05 * run.world.rank)
        number = 0
        while os.path.exists(f"run{number}"):
            number += 1
        os.makedirs(f"run{number}")
        torch.save(number, f"run{number}/model.pt")
        again = len(glob.glob("run*"))
        Path(f"run{again}").mkdir()
        return number, again, len(os.listdir())

    (tmp_path / "run0").mkdir()
    assert on(script, 3) == [(1, 2, 3)] * 3


def test_questions_are_answered_by_rank_0(on, tmp_path):
    (tmp_path / "data" / "sub").mkdir(parents=True)
    for name in ("b", "a", "sub/c"):
        (tmp_path / "data" / name).write_text("x" * 10)
    (tmp_path / "link").symlink_to("data/a")

    def script(run):
        if run.world.rank:
            time.sleep(0.02)
        seen = [
            os.path.isfile("data/a"),
            os.path.isdir("data"),
            os.path.getsize("data/a"),
            os.path.getmtime("data/a"),
            os.listdir("data"),
            [(e.name, e.is_dir(), e.is_file(), e.stat().st_size) for e in os.scandir("data")],
            [(str(d), sorted(f), n) for d, f, n in os.walk("data")],
            sorted(glob.glob("data/**/*", recursive=True)),
            [str(p) for p in Path("data").glob("**/*")],
            [p.name for p in Path("data").iterdir()],
            Path("data/none").exists(),
            Path("link").is_symlink(),
            os.readlink("link"),
            os.access("data", os.W_OK),
            raised(lambda: os.listdir("nowhere")),
            Path("data/a").stat().st_mtime_ns,
        ]
        if run.world.rank == 0:  # what rank 0 answered holds, whatever came to pass since
            with run.effects.context.internal():
                shutil.rmtree("data")
        return seen

    zero, one = on(script)
    assert zero == one
    assert zero[2] == 10
    assert zero[7] == ["data/a", "data/b", "data/sub", "data/sub/c"]


def test_names_change_once_and_what_is_read_follows(on, tmp_path):
    def script(run):
        Path("last").write_text("one")
        os.rename("last", "best")
        first = Path("best").read_text()
        log = open("log", "w")
        log.write("abc")
        log.flush()
        os.replace("log", "log.1")
        renamed = Path("log.1").read_text()
        log.close()
        copied = shutil.copyfile("best", "copy"), Path("copy").read_text()
        kept = shutil.copy(Path("best"), Path("copy2"))
        os.mkdir("folder")
        moved = shutil.move("copy", "folder")
        os.remove("best")
        gone = raised(lambda: os.remove("best")), raised(lambda: open("best"))
        shutil.copytree("folder", "folder2")
        shutil.rmtree("folder")
        os.symlink("folder2", "link")
        Path("touched").touch()
        return first, renamed, copied, kept, moved, gone, sorted(os.listdir()), os.listdir("link")

    zero, one = on(script)
    assert zero == one
    assert zero[:5] == ("one", "abc", ("copy", "one"), Path("copy2"), "folder/copy")
    assert zero[5][0] == ("FileNotFoundError", "[Errno 2] No such file or directory: 'best'")
    assert zero[6:] == (["copy2", "folder2", "link", "log.1", "touched"], ["copy"])
    assert sorted(os.listdir(tmp_path)) == zero[6]


def test_removal_waits_for_slower_readers(on, tmp_path):
    def script(run):
        for n in range(3):
            Path("x").write_text(str(n))
            time.sleep(0.05 * run.world.rank)
            assert Path("x").read_text() == str(n)
            os.remove("x")

    on(script, 3)


def test_temporary_names_are_rank_0s(on):
    def script(run):
        folder = tempfile.mkdtemp()
        torch.save(1, os.path.join(folder, "x.pt"))
        assert torch.load(os.path.join(folder, "x.pt")) == 1
        with tempfile.TemporaryDirectory() as other:
            Path(other, "a").write_text("b")
            assert Path(other, "a").read_text() == "b"
        assert not os.path.exists(other)
        handle, path = tempfile.mkstemp()
        os.write(handle, b"12")
        os.close(handle)
        assert Path(path).read_bytes() == b"12"
        os.remove(path)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("x")
            file.flush()
            assert Path(file.name).read_text() == "x"
            named = file.name
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
        shutil.rmtree(folder)
        left = tempfile.TemporaryDirectory()
        return folder, other, path, named, left.name

    zero, one = on(script)
    assert zero == one
    assert not any(os.path.exists(path) for path in zero[:4])


def test_where_temporary_files_go_is_asked_by_all_ranks_or_none(on):
    def script(run):
        Path("x").write_text("a")  # takes a scratch on ranks above 0
        return tempfile.gettempdir()

    def nothing_is_known(rank):
        tempfile.tempdir = tempfile._name_sequence = None

    assert on(script, before=nothing_is_known) == [tempfile.gettempdir()] * 2


def nothing_asked(rank):
    """As a script's first line finds it: whoever made the process may have asked."""
    tempfile.tempdir = None


def a_library_writes():
    """Whether it is a temporary file is looked up, and is no question of the script's."""
    shutil.copyfile("a", "copy")
    logging.FileHandler("log").close()


@pytest.mark.parametrize("first", ["mkstemp", "mkdtemp", "NamedTemporaryFile", "gettempdir"])
@pytest.mark.parametrize("nproc", [2, 3])
def test_temporary_files_go_where_the_script_says_before_it_first_asks(on, tmp_path, first, nproc):
    """Afterwards python asks no variable any more, nor do ranks that left the making to rank 0."""

    def script(run):
        Path("a").write_text("a")  # takes a scratch on ranks above 0
        a_library_writes()
        for name in ("b", "c"):
            os.environ["TMPDIR"] = str(tmp_path / name)
            os.makedirs(name, exist_ok=True)
            a_library_writes()
            getattr(tempfile, first)()
        return tempfile.gettempdir(), tempfile.gettempdirb()

    found = on(script, nproc, before=nothing_asked)
    assert found == [(str(tmp_path / "b"), os.fsencode(tmp_path / "b"))] * nproc


@pytest.mark.parametrize("first", ["mkdtemp", "gettempdir"])
def test_ranks_find_alike_that_a_folder_takes_no_temporary_files(on, tmp_path, first):
    """Ranks above 0 would be given room of their own where they write to a folder of the job."""

    def script(run):
        os.environ["TMPDIR"] = str(tmp_path / "missing")
        os.environ["TEMP"] = str(tmp_path)
        getattr(tempfile, first)()
        return tempfile.gettempdir()

    assert on(script, 3, before=nothing_asked) == [str(tmp_path)] * 3


def test_what_a_process_was_told_of_temporary_files_before_the_job_stays(on, tmp_path):
    def script(run):
        os.environ["TMPDIR"] = str(tmp_path)
        return tempfile.gettempdir()

    there = tempfile.gettempdir()
    assert on(script, before=lambda rank: tempfile.gettempdir()) == [there] * 2


def test_a_fork_asks_for_its_temporary_folder_itself(on, tmp_path):
    def script(run):
        child = os.fork()
        if child == 0:
            os.environ["TMPDIR"] = str(tmp_path)
            os._exit(tempfile.gettempdir() != str(tmp_path))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert on(script, before=nothing_asked) == [0, 0]


def test_a_change_returns_what_it_returns_in_one_process(on, tmp_path):
    def script(run):
        os.makedirs("from/inner")
        os.makedirs("into")
        for name in ("a", "b", "c", "d"):
            Path(name).write_text(name)
        acts = [
            lambda: os.link("a", "linked"),
            lambda: os.symlink("a", "symbolic"),
            lambda: os.rename("b", "renamed"),
            lambda: os.replace("renamed", "replaced"),
            lambda: Path("replaced").rename("moved"),
            lambda: shutil.copyfile("a", "copied"),
            lambda: shutil.copy("a", "copied"),
            lambda: shutil.copy(Path("a"), Path("into")),
            lambda: shutil.copy2("d", "into/e"),
            lambda: shutil.copytree("from", Path("tree")),
            lambda: shutil.move("c", "away"),
            lambda: shutil.move("from/inner/", "into"),
            lambda: shutil.make_archive("zipped", "zip"),
            lambda: shutil.make_archive("packed", "gztar", "from"),
            lambda: shutil.unpack_archive("packed.tar.gz", "unpacked", filter="data"),
            lambda: shutil.rmtree("unpacked"),
        ]
        seen = []
        for act in acts:
            seen.append(act())
        return seen

    zero, one = on(script)
    assert zero == one
    assert [done for done in zero if done] == [
        *(Path("moved"), "copied", "copied", "into/a", "into/e", Path("tree"), "away"),
        *("into/inner", "zipped.zip", f"{tmp_path}/packed.tar.gz"),
    ]


def test_in_the_local_view_nobody_waits(on, tmp_path):
    def script(run):
        os.makedirs("x", exist_ok=True)
        if run.world.rank == 0:
            os.mkdir("y")
        os.mkdir("z")
        return os.path.isdir("x")

    assert on(script, view="local") == [True, True]
    assert sorted(os.listdir(tmp_path)) == ["x", "y", "z"]


def test_a_timestamped_run_with_a_log_and_a_checkpoint(on, tmp_path):
    def script(run):
        folder = Path(f"run-{run.world.rank}")  # a name that tells ranks apart
        folder.mkdir()
        torch.save({"epoch": 1}, folder / "last.pt")
        with open(folder / "log.csv", "w") as log:
            log.write("1\n")
        return torch.load(folder / "last.pt"), (folder / "log.csv").read_text()

    assert on(script) == [({"epoch": 1}, "1\n")] * 2
    assert os.listdir(tmp_path) == ["run-0"]
