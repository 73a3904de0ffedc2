"""Recordings that are read: those that are broken or not whole."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from autoddp.cli import command
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process.script import Script
from autoddp.tools.record.numbers import prints_of, value
from autoddp.tools.record.recording import read
from autoddp.tools.record.script import recorded

NOBODY = 65534  # a user


def test_numbers_that_are_still_to_be_conjugated_are_read():
    x = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert x.is_conj()
    assert prints_of([x])[0][:2] == pytest.approx([math.sqrt(15), 3.0])
    assert value(x) == pytest.approx(math.sqrt(15))


PARTS = {"loading": 0.0, "gathering": 0.0, "gradients": 0.0}
TIMES = {"rows": 4, "backwards": 1, "seconds": 0.1, **PARTS}


def rank(steps: int = 3) -> str:
    """Write the lines of a rank."""
    lines = [{"step": step} | TIMES for step in range(1, steps + 1)]
    end = {"ended": True, "raised": None, "memory": 1}
    return "".join(json.dumps(line) + "\n" for line in [*lines, end])


def recording(folder: Path, ranks: int = 1, **about: object) -> Path:
    """Write a recording as `autoddp run --record` does."""
    folder.mkdir()
    said = {
        "script": "train.py",
        "arguments": [],
        "module": False,
        "view": "global",
        "ranks": ranks,
        "exit": 0,
        "seconds": 1.0,
    }
    (folder / "recording.json").write_text(json.dumps(said | about))
    for number in range(ranks):
        (folder / f"{number}.jsonl").write_text(rank())
    return folder


BROKEN = {
    ("0.jsonl", None): "{} holds no recording (no 0.jsonl); autoddp run --record {} makes one",
    ("recording.json", None): "{} holds no recording (no recording.json); autoddp run --record",
    ("recording.json", ""): "{} is no whole recording (Expecting value: line 1 column 1",
    ("recording.json", "[]"): "{} is no whole recording (autoddp.tools.record.recording.About()",
    ("recording.json", "{}"): "{} is no whole recording (About.__init__() missing 7 required",
    ("1.jsonl", "\n"): "{} is no whole recording (Expecting value",
    ("1.jsonl", "3\n"): "{} is no whole recording (argument of type 'int' is not",
    ("0.jsonl", b"\xff\n"): "{} is no whole recording ('utf-8' codec can't decode byte 0xff",
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
    assert said.err.startswith(f"[autoddp] {BROKEN[name, text].replace('{}', str(folder), 2)}"), (
        said.err
    )
    assert len(said.err.splitlines()) == 1


def test_a_users_own_lines_of_json_are_no_part_of_a_recording(tmp_path):
    folder = recording(tmp_path / "a")
    (folder / "train.jsonl").write_text("no JSON\n")
    assert list(read(str(folder)).steps) == [0]
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


def test_a_folder_that_may_not_be_listed_is_refused():
    """As another user than root, who may list every folder."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        (Path(folder) / "train.py").write_text("")
        os.chmod(folder, 0o311)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            if os.geteuid() == 0:
                os.setuid(NOBODY)
            try:
                recorded(Script(f"{folder}/train.py"), Options(), folder)
            except BaseException as error:
                os.write(write, f"{type(error).__name__}: {error}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with os.fdopen(read) as file:
            assert "cannot be written to (Permission denied); give" in file.read()


def benched(*folders: Path) -> dict[str, Any]:
    """What `autoddp bench --recordings` says of these."""
    found = folders[0].parent / "speed.json"
    assert command(["bench", "--json", str(found), "--recordings", *map(str, folders)]) == 0
    return json.loads(found.read_text())


def test_ranks_of_the_local_view_count_all_their_rows(tmp_path):
    one, two = recording(tmp_path / "a"), recording(tmp_path / "b", 2, view="local")
    assert [row["batch"] for row in benched(one, two)["rows"]] == [4, 8]


def test_a_recording_that_is_not_whole_says_so(tmp_path):
    one, two = recording(tmp_path / "a"), recording(tmp_path / "b", 3, exit=None)
    three = recording(tmp_path / "c", exit=3)
    (two / "1.jsonl").unlink()
    notes = benched(one, two, three)["notes"]
    assert f"{two} has not ended: it is taken as far as it came" in notes
    assert f"{three} ended with exit code 3" in notes
    assert any(note.startswith(f"{two} has 2 of 3 ranks: 1 wrote on other nodes") for note in notes)


def test_no_recordings_at_all_is_told_as_such(capsys):
    assert command(["bench", "--recordings"]) == 2
    said = "[autoddp] no recordings given; say which: autoddp bench [OPTIONS] --recordings A B\n"
    assert capsys.readouterr().err == said
