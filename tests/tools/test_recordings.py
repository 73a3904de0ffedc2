"""Recordings that are read: those that are broken or not whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoddp.cli import command

PARTS = {"loading": 0.0, "gathering": 0.0, "gradients": 0.0}
TIMES = {"rows": 4, "backwards": 1, "seconds": 0.1, **PARTS}


def recording(folder: Path, ranks: int = 1, code: int | None = 0, view: str = "global") -> Path:
    """Write a recording as `autoddp run --record` does."""
    folder.mkdir()
    about = {"script": "train.py", "arguments": [], "view": view, "ranks": ranks}
    end = {"ended": True, "raised": None, "exit": code, "seconds": 1.0, "memory": 1}
    steps = [{"step": step} | TIMES for step in (1, 2, 3)]
    lines = [about, *steps, *[end] * (code is not None)]
    for number in range(ranks):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder


BROKEN = {
    ("1.jsonl", None): "it takes a file of each rank, with 2 steps or more",
    ("0.jsonl", b"\xff\n"): "'utf-8' codec can't decode byte 0xff",
}


@pytest.mark.parametrize(("name", "text"), BROKEN, ids=repr)
def test_what_is_broken_is_named_in_one_line(name, text, tmp_path, capsys):
    folder = recording(tmp_path / "a", ranks=2)
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(text)
    assert command(["bench", "--recordings", str(folder), str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    want = f"[autoddp] {folder} is no whole recording ({BROKEN[name, text]}"
    assert said.err.startswith(want), said.err
    assert said.err.endswith(f"; autoddp run --record {folder} makes one\n")
    assert len(said.err.splitlines()) == 1


def benched(*folders: Path) -> dict[str, Any]:
    """What `autoddp bench --recordings` says of these."""
    found = folders[0].parent / "speed.json"
    assert command(["bench", "--json", str(found), "--recordings", *map(str, folders)]) == 0
    return json.loads(found.read_text())


def test_ranks_of_the_local_view_count_all_their_rows(tmp_path):
    one, two = recording(tmp_path / "a"), recording(tmp_path / "b", 2, view="local")
    assert [row["batch"] for row in benched(one, two)["rows"]] == [4, 8]
