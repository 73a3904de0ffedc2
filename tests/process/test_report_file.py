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
# the fields that are documented
FIELDS = {
    *("version", "versions", "script", "arguments", "ranks", "nodes", "backend", "view", "exit"),
    *("times", "shared", "gathered", "decisions"),
}
DECISION = {"kind", "where", "line", "what", "count", "size"}
TIMES = {"seconds", "computing", "gradients", "ranks", "loader"}


@pytest.mark.slow
def test_a_report_has_the_fields_that_are_documented(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("--report", "told.json", "train.py", "--lr", "1")
    ran = run_cli("run", "--nproc", 2, *words, cwd=tmp_path)
    assert ran.rc == 3, ran.err
    found = json.loads((tmp_path / "told.json").read_text())
    assert set(found) == FIELDS
    assert set(found["versions"]) == {"python", "torch", "autoddp"}
    assert {name: found[name] for name in ("version", "script", "arguments", "exit")} == {
        "version": 1,
        "script": "train.py",
        "arguments": ["--lr", "1"],
        "exit": 3,
    }
    assert (found["ranks"], found["nodes"], found["view"]) == (2, 1, "global")
    assert set(found["times"]) == TIMES
    assert all(set(decision) == DECISION for decision in found["decisions"])
    lines = {(made["kind"], made["line"]) for made in found["decisions"]}
    assert {("loaders", "train.py:9"), ("gather", "train.py:13")} <= lines
    assert found["gathered"] > 0
