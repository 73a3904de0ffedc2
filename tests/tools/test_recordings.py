"""Broken and incomplete recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoddp.cli import command

PARTS = {"loading": 0.0, "gathering": 0.0, "gradients": 0.0}
TIMES = {"rows": 4, "backwards": 1, "seconds": 0.1, **PARTS}


def recording(folder: Path, ranks: int) -> Path:
    """Write a recording as `autoddp run --record` does."""
    folder.mkdir()
    about = {"script": "train.py", "arguments": [], "view": "global", "ranks": ranks}
    end = {"ended": True, "raised": None, "exit": 0, "seconds": 1.0, "memory": 1}
    steps = [{"step": step} | TIMES for step in (1, 2, 3)]
    lines = [about, *steps, end]
    for number in range(ranks):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder


BROKEN = {
    ("1.jsonl", None): "it needs a file of each rank, with 2 steps or more",
    ("0.jsonl", b"\xff\n"): "'utf-8' codec can't decode byte 0xff",
}


@pytest.mark.parametrize(("name", "text"), BROKEN, ids=repr)
def test_a_broken_recording_is_named_in_one_line(name, text, tmp_path, capsys):
    folder = recording(tmp_path / "a", ranks=2)
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(text)
    assert command(["bench", "--recordings", str(folder), str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    want = f"[autoddp] {folder} is not a complete recording ({BROKEN[name, text]}"
    assert said.err.startswith(want), said.err
    assert said.err.endswith(f"; autoddp run --record {folder} makes one\n")
    assert len(said.err.splitlines()) == 1
