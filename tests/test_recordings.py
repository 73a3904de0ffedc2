"""Recordings that are read: those of odd numbers, and those that are broken or not whole."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from autoddp.cli import command
from autoddp.tools.record.numbers import prints_of, value


def test_numbers_that_are_still_to_be_conjugated_are_read():
    x = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert x.is_conj()
    assert prints_of([x])[0][:2] == pytest.approx([math.sqrt(15), 3.0])
    assert value(x) == pytest.approx(math.sqrt(15))


def rank(steps: int = 3, gradient: float = 1.0, **more: object) -> str:
    """Write the lines of a rank."""
    print_ = [gradient, gradient, -gradient]
    times = {"rows": 4, "backwards": 1, "seconds": 0.1, "loading": 0.0}
    lines = [
        {
            "step": step,
            "times": times | {"gathering": 0.0, "gradients": 0.0},
            "line": "train.py:9",
            "losses": [["train.py:8", 1.0 / step]],
            "lr": [0.1],
            "gradients": [print_],
            "parameters": [print_],
            "dtypes": ["float64"],
            "generators": {"torch": 1},
            "optimizer": 0,
        }
        | ({"names": ["Net.weight"], "modules": {}} if step == 1 else {})
        | more
        for step in range(1, steps + 1)
    ]
    end = {"ended": True, "raised": None, "losses": [], "curve": [1.0], "memory": 1, "threads": 1}
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
        "cores": 2,
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
