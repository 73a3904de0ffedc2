"""Recordings that are read: those that are broken or not whole."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from autoddp.cli import command
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process.script import Script
from autoddp.tools.record.numbers import fingerprint, value
from autoddp.tools.record.recording import read_whole
from autoddp.tools.record.script import recorded


def test_numbers_that_are_still_to_be_conjugated_are_read():
    x = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert x.is_conj()
    assert fingerprint(x)[:2] == pytest.approx([math.sqrt(15), 3.0])
    assert value(x) == pytest.approx(math.sqrt(15))


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
    ("0.jsonl", None): "it takes a file of each rank, with 2 steps or more",
    ("1.jsonl", None): "it takes a file of each rank, with 2 steps or more",
    ("1.jsonl", "3\n3\n"): "argument of type 'int' is not",
    ("0.jsonl", b"\xff\n"): "'utf-8' codec can't decode byte 0xff",
}


@pytest.mark.parametrize(("name", "text"), BROKEN, ids=repr)
def test_what_is_broken_is_named_in_one_line(name, text, tmp_path, capsys):
    folder = recording(tmp_path / "a", ranks=2)
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert command(["bench", "--recordings", str(folder), str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    want = f"[autoddp] {folder} is no whole recording ({BROKEN[name, text]}"
    assert said.err.startswith(want), said.err
    assert said.err.endswith(f"; autoddp run --record {folder} makes one\n")
    assert len(said.err.splitlines()) == 1


def test_a_users_own_lines_of_json_are_no_part_of_a_recording(tmp_path):
    folder = recording(tmp_path / "a")
    (folder / "train.jsonl").write_text("no JSON\n")
    assert list(read_whole(str(folder)).steps) == [0]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("{}\n")
    (tmp_path / "train.py").write_text("")
    script = Script(str(tmp_path / "train.py"))
    assert recorded(script, Options(), str(tmp_path / "data"))


@pytest.mark.parametrize("name", ["", "file", "file/inside"])
def test_a_folder_that_cannot_be_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for made in ("file", "train.py"):
        (tmp_path / made).write_text("")
    with pytest.raises(
        BadInput, match=f"--record is {name or 'empty'}, which cannot be written to"
    ):
        recorded(Script("train.py"), Options(), name)


def benched(*folders: Path) -> dict[str, Any]:
    """What `autoddp bench --recordings` says of these."""
    found = folders[0].parent / "speed.json"
    assert command(["bench", "--json", str(found), "--recordings", *map(str, folders)]) == 0
    return json.loads(found.read_text())


def test_ranks_of_the_local_view_count_all_their_rows(tmp_path):
    one, two = recording(tmp_path / "a"), recording(tmp_path / "b", 2, view="local")
    assert [row["batch"] for row in benched(one, two)["rows"]] == [4, 8]


def test_how_a_recorded_run_ended_is_noted(tmp_path):
    one, two = recording(tmp_path / "a"), recording(tmp_path / "b", 3, None)
    three = recording(tmp_path / "c", code=3)
    notes = benched(one, two, three)["notes"]
    assert f"{two} has not ended" in notes
    assert f"{three} ended with exit code 3" in notes
