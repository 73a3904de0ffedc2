"""The file of --report has the fields that are documented."""

from __future__ import annotations

import json

import pytest

from tests.support.cli import run_cli

TRAIN = """
import sys
import torch
torch.manual_seed(0)
x, y = torch.randn(32, 4), torch.randn(32, 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for a, b in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
    a.numpy()
sys.exit(3)
"""
NUMBER, TEXT = (int, float), str
# each documented field and its types
FIELDS = {
    "version": int,
    "versions": dict,
    "script": TEXT,
    "arguments": list,
    "ranks": int,
    "nodes": int,
    "backend": TEXT,
    "view": TEXT,
    "exit": int,
    "times": dict,
    "shared": float,
    "gathered": int,
    "decisions": list,
}
DECISION = {
    "kind": TEXT,
    "where": TEXT,
    "line": (str, type(None)),
    "what": TEXT,
    "count": int,
    "size": int,
}
TIMES = {
    **dict.fromkeys(("seconds", "computing", "gradients", "ranks", "loader"), NUMBER),
}


def check(found, fields):
    assert set(found) == set(fields)
    for name, kind in fields.items():
        assert isinstance(found[name], kind), name


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A script that was run with all that tells of it, and its folder."""
    folder = tmp_path_factory.mktemp("told")
    (folder / "train.py").write_text(TRAIN)
    options = ("--report", "told.json")
    return run_cli("run", "--nproc", 2, *options, "train.py", "--lr", "1", cwd=folder), folder


@pytest.mark.slow
def test_a_report_has_the_fields_that_are_documented(done):
    ran, folder = done
    assert ran.rc == 3, ran.err
    found = json.loads((folder / "told.json").read_text())
    check(found, FIELDS)
    check(found["versions"], {"python": TEXT, "torch": TEXT, "autoddp": (str, type(None))})
    assert {name: found[name] for name in ("version", "script", "arguments", "exit")} == {
        "version": 1,
        "script": "train.py",
        "arguments": ["--lr", "1"],
        "exit": 3,
    }
    assert (found["ranks"], found["nodes"], found["view"]) == (2, 1, "global")
    check(found["times"], TIMES)
    for decision in found["decisions"]:
        check(decision, DECISION)
    lines = {(made["kind"], made["line"]) for made in found["decisions"]}
    assert {("loaders", "train.py:9"), ("gather", "train.py:13")} <= lines
    assert found["gathered"] > 0
