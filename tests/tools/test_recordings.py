"""Recordings that are read: those of odd numbers, and those that are broken or not whole."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from autoddp.cli import command
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process.script import Script
from autoddp.tools.record.numbers import prints_of, value
from autoddp.tools.record.recording import read
from autoddp.tools.record.script import recorded
from tests.support.ranks import run_ranks

NOBODY = 65534  # a user


def test_numbers_that_are_still_to_be_conjugated_are_read():
    x = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert x.is_conj()
    assert prints_of([x])[0][:2] == pytest.approx([math.sqrt(15), 3.0])
    assert value(x) == pytest.approx(math.sqrt(15))


PARTS = {"loading": 0.0, "gathering": 0.0, "gradients": 0.0}
TIMES = {"rows": 4, "backwards": 1, "seconds": 0.1, **PARTS}


def rank(steps: int = 3, gradient: float = 1.0, **more: object) -> str:
    """Write the lines of a rank."""
    print_ = [gradient, gradient, -gradient]
    lines = [
        {
            "step": step,
            "times": TIMES,
            "line": "train.py:9",
            "losses": [["train.py:8", 1.0 / step]],
            "lr": [0.1],
            "gradients": [print_],
            "parameters": [print_],
            "dtypes": ["float64"],
            "generators": {"torch": 1},
            "optimizer": 0,
        }
        | ({"names": ["Net.weight"]} if step == 1 else {})
        | more
        for step in range(1, steps + 1)
    ]
    end = {"ended": True, "raised": None, "losses": [], "memory": 1}
    return "".join(json.dumps(line) + "\n" for line in [*lines, end])


def recording(folder: Path, ranks: int = 1, **about: object) -> Path:
    """Write a recording as `autoddp run --record` does."""
    folder.mkdir()
    said = {
        "script": "train.py",
        "arguments": [],
        "module": False,
        "options": {"nproc": ranks},
        "apart": False,
        "ranks": ranks,
        "nodes": 1,
        "versions": {},
        "exit": 0,
        "seconds": 1.0,
    }
    (folder / "recording.json").write_text(json.dumps(said | about))
    for number in range(ranks):
        (folder / f"{number}.jsonl").write_text(rank())
    return folder


def test_norms_whose_squares_are_too_large_are_compared(tmp_path):
    for name in "ab":
        (recording(tmp_path / name) / "0.jsonl").write_text(rank(gradient=1e200))
    assert command(["verify", "--recordings", str(tmp_path / "a"), str(tmp_path / "b")]) == 0


def test_a_gradient_that_is_infinite_hides_no_other(tmp_path, capsys):
    for name, other in (("a", 1.0), ("b", 2.0)):
        gradients = [[math.inf, math.inf, math.nan], [other] * 3]
        lines = rank(gradients=gradients, names=["Net.weight", "Net.bias"])
        (recording(tmp_path / name) / "0.jsonl").write_text(lines)
    assert command(["verify", "--recordings", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "gradient Net.bias" in capsys.readouterr().out


BROKEN = {
    ("0.jsonl", None): "{} holds no recording (no 0.jsonl); autoddp run --record {} makes one",
    ("recording.json", None): "{} holds no recording (no recording.json); autoddp run --record",
    ("recording.json", ""): "{}/recording.json is '', which no recorder writes; copy it again",
    ("recording.json", "[]"): "{}/recording.json is '[]', which no recorder writes; copy it again",
    ("recording.json", "{}"): "{}/recording.json lacks apart, arguments, exit, nodes, options",
    ("1.jsonl", "\n"): "{}/1.jsonl, line 1 is '', which no recorder writes; copy it again",
    ("1.jsonl", "3\n"): "{}/1.jsonl, line 1 is '3', which no recorder writes; copy it again",
    ("0.jsonl", '{"step": 2}\n'): "{}/0.jsonl has no line of step 1; copy it again",
    ("0.jsonl", b"\xff\n"): "{}/0.jsonl cannot be read (it is no text); copy it again",
    ("1.jsonl", '{"step": 1}\n'): "{} holds times alone; record it without --record-kind times",
}


@pytest.mark.parametrize(("name", "text"), BROKEN, ids=repr)
def test_what_is_broken_is_named_in_one_line(name, text, tmp_path, capsys):
    folder = recording(tmp_path / "a", ranks=2)
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert command(["verify", "--recordings", str(folder), str(folder)]) == 2
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


def test_ranks_of_their_own_ddp_count_all_their_rows(tmp_path):
    one, two = recording(tmp_path / "a"), recording(tmp_path / "b", 2, apart=True)
    assert [row["batch"] for row in benched(one, two)["rows"]] == [4, 8]


def test_a_recording_that_is_not_whole_says_so(tmp_path, capsys):
    one, two = recording(tmp_path / "a"), recording(tmp_path / "b", 3, exit=None)
    three = recording(tmp_path / "c", exit=3)
    (two / "1.jsonl").unlink()
    notes = benched(one, two, three)["notes"]
    assert f"{two} has not ended: it is taken as far as it came" in notes
    assert f"{three} ended with exit code 3" in notes
    assert any(note.startswith(f"{two} has 2 of 3 ranks: 1 wrote on other nodes") for note in notes)
    capsys.readouterr()
    command(["verify", "--recordings", str(one), str(two)])
    assert f"{two} has not ended: it is taken as far as it came" in capsys.readouterr().out


def test_a_long_name_leaves_the_figures_in_the_tables(tmp_path, capsys):
    folder = recording(tmp_path / f"{'long' * 20}[lr=1]run")
    benched(folder)
    out = capsys.readouterr().out
    assert out.count("longlong[lr=1]run  ") == 2
    assert all(title in out for title in ("samples/s", "speed-up", "gathering"))


@pytest.mark.parametrize("of", ["verify", "bench"])
def test_no_recordings_at_all_is_told_as_such(of, capsys):
    assert command([of, "--recordings"]) == 2
    said = f"[autoddp] no recordings given; say which: autoddp {of} [OPTIONS] --recordings A B\n"
    assert capsys.readouterr().err == said


def of_a_spread_tensor(group):
    """In a process of its own: with a mesh, torch's engine has threads, and is forked no more."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    spread = distribute_tensor(torch.tensor([3.0, 4.0]), mesh, [Shard(0)])
    return prints_of([spread])[0][:2]


@pytest.mark.filterwarnings("ignore:DTensor random operators")  # torch 2.6 on CPUs
def test_of_a_tensor_that_is_spread_over_ranks_the_part_of_this_one_is_read():
    assert run_ranks(of_a_spread_tensor, 1) == [[5.0, 7.0]]
