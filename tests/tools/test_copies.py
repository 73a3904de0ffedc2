"""The copy of the folder for a run: complete, separate, and with the folders around it."""

from __future__ import annotations

import os
import shutil

from autoddp.tools.copies import copy_in_place


def test_a_copy_is_complete_and_relative_paths_work(tmp_path):
    here = tmp_path / "project" / "code"
    (here / "sub").mkdir(parents=True)
    (here / "train.py").write_text("print(1)")
    (here / "sub" / "large.bin").write_bytes(bytes(2**24))
    (here / "data").symlink_to("../data")
    for skipped in (".git", "__pycache__", "env"):
        (here / skipped).mkdir()
    (here / "env" / "pyvenv.cfg").touch()
    (tmp_path / "project" / "data").mkdir()
    (tmp_path / "project" / "data" / "x.txt").write_text("some data")
    (tmp_path / "beside.txt").write_text("beside")
    root = tmp_path / "root"
    copy = copy_in_place(here, root)
    assert sorted(os.listdir(copy)) == ["data", "sub", "train.py"]
    assert not (copy / "sub" / "large.bin").is_symlink()
    assert (copy / "data" / "x.txt").read_text() == "some data"
    assert (copy / ".." / "data" / "x.txt").read_text() == "some data"
    assert (copy / ".." / ".." / "beside.txt").read_text() == "beside"
    (copy / "train.py").write_text("print(2)")
    shutil.rmtree(root)
    assert (here / "train.py").read_text() == "print(1)"
    assert (tmp_path / "project" / "data" / "x.txt").exists()
