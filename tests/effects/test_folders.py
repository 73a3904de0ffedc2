import glob
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
    """`on(script)`: the results on 2 ranks, run in tmp_path."""
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


def test_rank_0_answers_queries_of_the_disk(on, tmp_path):
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


@pytest.mark.parametrize("made", ["open(tempfile.mkdtemp() + '/x', 'w').close()", "mkstemp()"])
def test_what_a_thread_makes_in_the_temporary_folder_stays_once(tmp_path, warm, made):
    """As in one process; no rank above 0 leaves one of its own, even if it is killed."""
    script = tmp_path / "s.py"
    script.write_text(
        "import tempfile, threading\nfrom tempfile import mkstemp\n"
        f"thread = threading.Thread(target=lambda: {made})\n"
        "thread.start()\n"
        "thread.join()\n"
        "raise ValueError\n"
    )
    (tmp_path / "tmp").mkdir()
    command = ("autoddp", "run", "--nproc", "3", str(script))
    done = warm.run(*command, folder=tmp_path / "ranks", env={"TMPDIR": str(tmp_path / "tmp")})
    assert done.code == 1
    assert len(os.listdir(tmp_path / "tmp")) == 1


def nothing_asked(rank):
    """Reset `tempfile` to the state at the first line of a script."""
    tempfile.tempdir = None


def test_the_script_can_set_the_temporary_folder(on, tmp_path):
    """Later changes of the variable have no effect, as in one process."""

    def script(run):
        Path("a").write_text("a")
        for name in ("b", "c"):
            os.environ["TMPDIR"] = str(tmp_path / name)
            os.makedirs(name, exist_ok=True)
            tempfile.mkstemp()
        return tempfile.gettempdir()

    assert on(script, 3, before=nothing_asked) == [str(tmp_path / "b")] * 3


def test_a_change_is_made_once_with_the_result_of_one_process(on, tmp_path):
    def script(run):
        os.makedirs("from/inner")
        os.makedirs("into")
        for name in ("a", "b", "c", "d"):
            Path(name).write_text(name)
        acts = [
            lambda: os.link("a", "linked"),
            lambda: os.symlink("a", "symbolic"),
            lambda: os.replace("b", "replaced"),
            lambda: Path("replaced").rename("moved"),
            lambda: shutil.copyfile("a", "copied"),
            lambda: shutil.copy(Path("a"), Path("into")),
            lambda: shutil.copy2("d", "into/e"),
            lambda: shutil.copytree("from", Path("tree")),
            lambda: shutil.move("c", "away"),
            lambda: shutil.make_archive("packed", "gztar", "from"),
            lambda: shutil.unpack_archive("packed.tar.gz", "unpacked", filter="data"),
            lambda: shutil.rmtree("unpacked"),
            lambda: os.remove("copied"),
        ]
        made = [act() for act in acts]
        found = sorted(os.listdir()), Path("symbolic").read_text(), Path("into/e").read_text()
        return made, found, raised(lambda: os.remove("copied"))

    zero, one = on(script)
    assert zero == one
    assert [done for done in zero[0] if done] == [
        *(Path("moved"), "copied", "into/a", "into/e", Path("tree"), "away"),
        f"{tmp_path}/packed.tar.gz",
    ]
    assert zero[1] == (sorted(os.listdir(tmp_path)), "a", "d")
    assert zero[2] == ("FileNotFoundError", "[Errno 2] No such file or directory: 'copied'")


REMEMBERED = """
import os

def remembered(path, act):
    if not os.path.exists(path):
        act()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").close()
"""


@pytest.mark.parametrize("folder", ["xyz", "home/.cache/huggingface/datasets/generator"])
def test_a_librarys_cache_of_results_is_that_of_one_process(on, tmp_path, folder):
    library, path = {}, str(tmp_path / folder / "kept")
    exec(compile(REMEMBERED, "/x/site-packages/lib.py", "exec"), library)

    def script(run):
        called = []
        for _ in range(2):
            time.sleep(0.1 * run.world.rank)
            library["remembered"](path, lambda: called.append(1))
            library["remembered"](path, lambda: called.append(2))
            os.remove(path)
        return called

    def at_home(rank):
        os.environ["HOME"] = str(tmp_path / "home")

    assert on(script, 3, before=at_home) == [[1, 1]] * 3


def test_the_real_path_of_an_installed_file_is_asked_of_nobody_another_once(on, tmp_path):
    def script(run):
        asked, ask = [], run.effects.ask_rank0
        run.effects.ask_rank0 = lambda what, act: (asked.append(what), ask(what, act))[1]
        with run.effects.context.internal():  # each rank's disk says something else
            os.chdir(f"{run.world.rank}")
            os.symlink(f"{run.world.rank}", "link")
        found = [os.path.realpath(torch.__file__) == torch.__file__, asked[:]]
        found += [os.path.realpath("link"), Path("link").resolve().name]
        return [*found, "posix.lstat" in asked]

    for rank in range(2):
        (tmp_path / f"{rank}").mkdir()
    real = [str(tmp_path.resolve() / "0" / "0"), "0", False]
    assert on(script) == [[True, [], *real]] * 2
