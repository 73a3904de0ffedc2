"""Rank 0's journal of what it is about to change."""

from __future__ import annotations

import os

from autoddp.comm.place import HERE
from autoddp.effects.journal import Board, Journal


def test_a_thread_that_is_late_notes_nothing_in_a_journal_that_has_ended(tmp_path, monkeypatch):
    """Its file is closed then, and whatever is opened next may have the same number."""
    folder = tmp_path / "journal"
    folder.mkdir()
    monkeypatch.setattr(HERE, "private", str(folder))
    journal = Journal(Board(str(folder), 2, make=True), 2)
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    journal.note(1, before)
    assert before in (folder / "journal-1").read_text()
    journal.end()
    others = [os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY) for name in "abcd"]
    try:
        journal.note(1, after)
        with journal.moving(1, before, after):
            pass
        assert [(tmp_path / name).read_bytes() for name in "abcd"] == [b""] * 4
        assert after not in (folder / "journal-1").read_text()
    finally:
        for handle in others:
            os.close(handle)
