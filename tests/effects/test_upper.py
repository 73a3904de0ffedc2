"""A private folder over a real one, by itself: what is found, what is hidden, what is let go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoddp.effects.overlay import Overlay


@pytest.fixture
def overlay(tmp_path, monkeypatch):
    """An overlay over a folder with `old/a` and `old/b`, which is the current one."""
    (tmp_path / "old").mkdir()
    for name in ("a", "b"):
        (tmp_path / "old" / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    made = Overlay()
    yield made
    made.end()


def write(overlay, name, text):
    Path(overlay.to_write(name, keep=False)).write_text(text)


def names(overlay, folder):
    """What this rank finds there."""
    found = overlay.entries(folder)
    return sorted(os.listdir(folder) if found is None else [one.name for one in found])


def test_a_folder_whose_files_were_removed_is_renamed_without_them(overlay):
    for name in ("old/a", "old/b"):
        overlay.remove(name)
    overlay.rename("old", "new")
    assert names(overlay, "new") == []
    assert not overlay.find("old").seen
    assert sorted(os.listdir("old")) == ["a", "b"]  # rank 0's


def test_a_folder_is_renamed_as_this_rank_sees_it(overlay):
    overlay.remove("old/a")
    write(overlay, "old/c", "of its own")
    overlay.rename("old", "new")
    assert names(overlay, "new") == ["b", "c"]
    assert Path(overlay.where("new/c")).read_text() == "of its own"
    overlay.rename("new", "old")
    assert names(overlay, "old") == ["b", "c"]
    with pytest.raises(FileNotFoundError):
        overlay.where("old/a")


def test_a_folder_made_where_one_was_removed_has_nothing_of_it(overlay):
    overlay.remove("old", tree=True)
    overlay.make("old", 0o777)
    assert names(overlay, "old") == []
    write(overlay, "old/a", "anew")
    assert (names(overlay, "old"), Path("old/a").read_text()) == (["a"], "a")


def test_what_was_removed_and_written_anew_is_found_when_rank_0_has_it(overlay):
    overlay.remove("old/a")
    write(overlay, "old/a", "of its own")
    Path("old/a").write_text("rank 0's")
    overlay.refresh()
    assert Path(overlay.where("old/a")).read_text() == "rank 0's"


def test_what_rank_0_has_done_is_the_disks_from_then_on(overlay, tmp_path):
    overlay.remove("old/a")
    write(overlay, "old/b", "of its own")
    write(overlay, "alone", "rank 0 has none")
    overlay.refresh()
    assert Path(overlay.where("old/b")).read_text() == "b"
    assert not overlay.find("old/a").seen  # rank 0 has not removed it
    os.remove("old/a")
    overlay.refresh()
    Path("old/a").write_text("again")
    assert Path(overlay.where("old/a")).read_text() == "again"
    assert Path(overlay.where("alone")).read_text() == "rank 0 has none"
    overlay.drop(str(tmp_path / "alone"))
    assert not overlay.find("alone").seen
