"""What a rehearsed run changes outside of its folder is kept first, collected, and put back."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from autoddp.errors import AutoDDPError
from autoddp.options import Options
from autoddp.process.script import Script
from autoddp.tools.rehearse.backup import put_back
from autoddp.tools.rehearse.guard import OutsideGuard
from autoddp.tools.rehearse.runs import Runner, stoppable
from autoddp.tools.rehearse.sandbox import MUCH, copy_folder


@pytest.fixture
def rehearsed(tmp_path):
    """`rehearsed(act)`: where what `act(out)` left was collected, once all is put back."""
    root, out = tmp_path / "root", tmp_path / "out"
    (root / "kept").mkdir(parents=True)
    out.mkdir()
    (out / "x.txt").write_text("user's")

    def rehearsed(act) -> Path:
        with ExitStack() as undo:
            OutsideGuard(root, root / "kept").setup(undo)
            act(out)
        put_back(root / "kept", root / "outside", tmp_path / "rescue")
        return root / "outside" / str(out)[1:]

    return rehearsed


def held(folder: Path) -> dict[str, str | None]:
    """What is in a folder; None stands for a folder in it."""
    found = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): p.read_text() if p.is_file() else None for p in found}


def test_a_file_is_put_back_though_its_folder_went_after_it(rehearsed, tmp_path):
    def act(out):
        (out / "x.txt").write_text("run's")
        shutil.rmtree(out)

    assert not rehearsed(act).exists()
    assert held(tmp_path / "out") == {"x.txt": "user's"}


def test_a_file_is_put_back_as_it_was_though_its_folder_was_made_again(rehearsed, tmp_path):
    def act(out):
        (out / "x.txt").write_text("run's")
        (out / "new.txt").write_text("run's")
        shutil.rmtree(out)
        (out / "sub").mkdir(parents=True)
        (out / "x.txt").write_text("run's last")

    assert held(rehearsed(act)) == {"sub": None, "x.txt": "run's last"}
    assert held(tmp_path / "out") == {"x.txt": "user's"}


def test_a_file_is_put_back_though_a_program_took_its_folder(rehearsed, tmp_path):
    def act(out):
        (out / "x.txt").write_text("run's")
        os.spawnlp(os.P_WAIT, "rm", "rm", "-r", str(out))

    rehearsed(act)
    assert held(tmp_path / "out") == {"x.txt": "user's"}


def test_what_cannot_be_put_back_is_kept_and_all_else_is_put_back(rehearsed, tmp_path):
    (tmp_path / "out" / "sub").mkdir()
    (tmp_path / "out" / "sub" / "y.txt").write_text("user's, too")

    def act(out):
        for name in ("x.txt", "sub/y.txt", "z.txt"):
            (out / name).write_text("run's")
        os.spawnlp(os.P_WAIT, "rm", "rm", "-r", str(out / "sub"))
        os.spawnlp(os.P_WAIT, "touch", "touch", str(out / "sub"))  # no folder is made there

    with pytest.raises(AutoDDPError) as error:
        rehearsed(act)
    shutil.rmtree(tmp_path / "root")  # as when the runs are over
    assert held(tmp_path / "out") == {"x.txt": "user's", "sub": ""}
    said = str(error.value)
    assert said.startswith(f"{tmp_path}/out/sub/y.txt could not be put back as it was; its copy is")
    assert len(said.splitlines()) == 1
    assert Path(said.split("its copy is ")[1].split(": ")[0]).read_text() == "user's, too"
    assert (tmp_path / "rescue").stat().st_mode & 0o77 == 0


def test_what_cannot_be_collected_is_put_back_all_the_same(rehearsed, tmp_path):
    (tmp_path / "root" / "outside").touch()  # no folder, so that nothing can be moved there

    def act(out):
        for name in ("x.txt", "z.txt"):
            (out / name).write_text("run's")

    with pytest.raises(OSError, match="outside"):
        rehearsed(act)
    assert held(tmp_path / "out") == {"x.txt": "user's"}


def test_a_name_below_an_open_folder_is_read_there(rehearsed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("of the current folder")

    def act(out):
        folder = os.open(out, os.O_RDONLY)
        os.mkdir("new", dir_fd=folder)
        os.rename("x.txt", "y.txt", src_dir_fd=folder, dst_dir_fd=folder)
        os.symlink("y.txt", "link", dir_fd=folder)
        os.link("y.txt", "again", src_dir_fd=folder, dst_dir_fd=folder)
        os.chmod("y.txt", 0o600, dir_fd=folder)
        os.utime("y.txt", (1, 1), dir_fd=folder)
        os.unlink("again", dir_fd=folder)
        os.close(folder)

    there = rehearsed(act)
    assert held(there) == {"link": "user's", "new": None, "y.txt": "user's"}
    assert held(tmp_path / "out") == {"x.txt": "user's"}
    assert not (there.parent / "x.txt").exists(), "touched by nobody"


def test_of_a_folder_that_is_removed_one_copy_is_kept(rehearsed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("of the current folder")
    rehearsed(shutil.rmtree)
    assert sorted(os.listdir(tmp_path / "root" / "kept")) == ["0", "journal.jsonl"]
    assert held(tmp_path / "out") == {"x.txt": "user's"}


def test_what_a_new_link_points_to_is_not_copied(rehearsed, tmp_path):
    rehearsed(lambda out: os.symlink(tmp_path / "out" / "x.txt", tmp_path / "link"))
    assert os.listdir(tmp_path / "root" / "kept") == ["journal.jsonl"]
    assert not os.path.lexists(tmp_path / "link")


def test_a_large_folder_with_code_far_down_is_no_link(tmp_path):
    source = tmp_path / "source"
    for name in ("lib", "data"):
        (source / name / "below").mkdir(parents=True)
        with open(source / name / "large.bin", "wb") as file:
            file.truncate(MUCH + 1)  # no room on the disk
    (source / "lib" / "below" / "code.py").write_text("x = 1")
    copy_folder(source, tmp_path / "copy", tmp_path / "none")
    links = {str(p.relative_to(tmp_path / "copy")) for p in tmp_path.rglob("*") if p.is_symlink()}
    assert links == {"data", "lib/large.bin"}
    assert (tmp_path / "copy" / "lib" / "below" / "code.py").read_text() == "x = 1"


def test_a_signal_waits_until_all_is_put_back(tmp_path, monkeypatch):
    names = [f"{number}.txt" for number in range(500)]
    (tmp_path / "here").mkdir()
    (tmp_path / "out").mkdir()
    for name in names:
        (tmp_path / "out" / name).write_text("user's")
    monkeypatch.chdir(tmp_path / "here")

    @dataclass
    class Stopped(Runner):
        """A run in this process, which is told to stop when it is over."""

        def _follow(self, name, results, work, task, more):
            with ExitStack() as undo:
                OutsideGuard(self.root, results / "kept").setup(undo)
                for each in names:
                    (tmp_path / "out" / each).write_text("run's")
            threading.Thread(target=tell_to_stop, args=(results / "outside",)).start()
            return 0

        def _keep(self, work, results):
            time.sleep(60)  # for the signal, if it has not come by then

    runner = Stopped(Script("train.py"), "")
    try:
        with pytest.raises(SystemExit) as ended, stoppable():
            runner.run("one process", Options(nproc=1))
    finally:
        runner.close()
        runner.parents.close()
    assert ended.value.code == 128 + signal.SIGTERM
    assert held(tmp_path / "out") == dict.fromkeys(sorted(names), "user's")


def tell_to_stop(when: Path) -> None:
    """Send this process SIGTERM as soon as something is there."""
    while not when.exists():
        time.sleep(0.0001)
    os.kill(os.getpid(), signal.SIGTERM)
