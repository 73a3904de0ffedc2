"""A run's copy of the folder: whole, apart from the user's, and with the folders around it."""

from __future__ import annotations

import functools
import os
import shutil

import pytest

from autoddp.errors import BadInput
from autoddp.tools import copies
from autoddp.tools.copies import copy_in_place


def test_a_copy_is_whole_and_its_surroundings_are_there(tmp_path):
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


def test_a_temporary_folder_within_the_folder_is_not_copied(tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "root").mkdir()
    copy = copy_in_place(tmp_path, tmp_path / "root" / "run")
    assert os.listdir(copy) == ["train.py"]


def test_a_file_that_goes_meanwhile_is_named(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "log.txt").touch()

    def copy(source, target):
        os.unlink(source)
        return shutil.copy2(source, target)

    busy = functools.partial(shutil.copytree, copy_function=copy)
    monkeypatch.setattr(copies.shutil, "copytree", busy)
    with pytest.raises(BadInput, match=r"^log.txt cannot be copied \(.*No such file"):
        copy_in_place(tmp_path / "here", tmp_path / "root")
