"""`autoddp bench` counts the samples that a script trains on, and shows where its time goes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from autoddp import cli
from autoddp.options import Options
from autoddp.process.script import Script
from autoddp.tools.bench import command
from autoddp.tools.bench.rows import GLOBAL, LOCAL, PLAIN, SHARDED, Row

pytestmark = pytest.mark.slow

# 44 rows by 8: five full batches an epoch, and a short one.
TRAIN = """
    import time
    import autoddp
    import torch, torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(3)
    x = torch.randn(44, 6)
    data = TensorDataset(x, x[:, :3].argmax(1))
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for epoch in range(2):
        net.train()
        for a, b in DataLoader(data, batch_size=8, shuffle=True):
            loss = F.cross_entropy(net(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if autoddp.rank() == 1: time.sleep(0.05)
            loss.item()
        net.eval()
        with torch.no_grad():
            right = sum((net(a).argmax(1) == b).sum().item() \
for a, b in DataLoader(data, batch_size=20))
    open("made.txt", "w").write("here")
    print(f"epoch {epoch}: val acc {right / 44:.4f} [of 1]")
"""
# No loader; rank 1 comes late to every backward.
BY_HAND = """
    import time
    import autoddp
    import torch
    from torch import nn

    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(7):
        loss = net(torch.randn(6, 4)).square().mean()
        optimizer.zero_grad()
        if autoddp.rank() == 1: time.sleep(0.06)
        loss.backward()
        optimizer.step()
    print(time.time())
"""
# No model either; ranks cannot run it.
FAILS = """
    import autoddp
    import torch
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for step in range(8):
        if autoddp.world_size() == 2: raise ValueError("not on ranks")
        weight.square().sum().backward()
        optimizer.step()
"""


@dataclass(frozen=True)
class Seen:
    """The results of a bench."""

    code: int
    data: dict
    out: str
    err: str

    def row(self, kind: str) -> dict:
        (found,) = [row for row in self.data["rows"] if row["row"] == kind]
        return found


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """Bench a text, with one thread."""

    def benched(text: str, **wanted: object) -> Seen:
        folder = tmp_path_factory.mktemp("bench")
        (folder / "here").mkdir()
        (folder / "here" / "train.py").write_text(textwrap.dedent(text))
        out, err = io.StringIO(), io.StringIO()
        found = folder / "found.json"
        with contextlib.chdir(folder / "here"), redirect_stdout(out), redirect_stderr(err):
            what = command.BenchOptions(nproc=(2,), json=str(found), **wanted)
            # else such a small script would soon compute whole batches
            code = command.run(Script("train.py"), Options(placement="sharded"), what)
        assert os.listdir(folder / "here") == ["train.py"], "the user's files are as before"
        data = json.loads(found.read_text()) if found.exists() else {}
        return Seen(code, data, out.getvalue(), err.getvalue())

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield benched


@pytest.fixture(scope="module")
def seen(benched, tmp_path_factory):
    """All rows, once."""
    picture = tmp_path_factory.mktemp("plot") / "speed.png"
    found = benched(TRAIN, rounds=1, plot=str(picture))
    assert found.code == 0, found
    assert picture.stat().st_size > 1000
    return found


def test_samples_and_steps_are_counted_exactly(seen):
    assert [row["row"] for row in seen.data["rows"]] == [PLAIN, GLOBAL, LOCAL, SHARDED]
    for row in seen.data["rows"]:
        assert row["samples"] == 88, "evaluation is no training"
        assert (row["batch"], row["steps"]) == (8, 12)


def test_shares_are_parts_of_one_step(seen):
    for row in seen.data["rows"]:
        for run in row["rounds"]:
            assert sum(run["shares"].values()) == pytest.approx(1)
            assert all(share >= 0 for share in run["shares"].values())
            assert 0 < run["median"] < run["seconds"]
    plain, ranks = seen.row(PLAIN)["shares"], seen.row(GLOBAL)["shares"]
    assert plain["gathering"] == plain["gradients"] == 0
    assert plain["loading"] > 0
    assert ranks["gathering"] > max(0.2, ranks["gradients"]), (
        "rank 0 waits for rank 1's part of the loss"
    )
    assert seen.row(LOCAL)["shares"]["gradients"] > 0.2, "there it waits for its gradients alone"


def test_the_printed_tables(seen):
    assert seen.row(PLAIN)["speed-up"] == 1
    shown = [line for line in seen.out.splitlines() if not line.startswith("[autoddp]")]
    assert max(map(len, shown)) <= 100
    titles = [" ".join(line.split()) for line in shown if "ranks" in line]
    assert titles == [
        "how fast ranks batch seconds samples/s ± step ms speed-up",
        "where the time of a step goes ranks loading computing gathering gradients",
    ]
    assert "[autoddp] round 1 of 1: global view, 2 ranks: " in seen.err


def test_a_script_without_a_loader(benched):
    seen = benched(BY_HAND, rounds=2)
    assert seen.code == 0
    assert [row["row"] for row in seen.data["rows"]] == [PLAIN, GLOBAL, SHARDED]
    for row in seen.data["rows"]:
        assert (row["steps"], row["samples"], row["batch"]) == (7, 42, 6)
    shares = seen.row(GLOBAL)["shares"]
    assert shares["gradients"] > max(0.2, shares["gathering"]), (
        "rank 0 waits for rank 1 in DDP's buckets"
    )
    assert any("local view was not run" in note for note in seen.data["notes"])


def test_a_failed_row_does_not_stop_the_others(benched):
    seen = benched(FAILS, rounds=1, steps=6)
    assert seen.code == 1
    assert seen.row(GLOBAL)["failed"][-1] == "ValueError: not on ranks"
    assert "ValueError: not on ranks" in seen.out
    assert seen.row(PLAIN)["samples"] == 6


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("print(1)\nraise KeyError('x')\n", ("exit code 1 after 0 steps", "KeyError: 'x'")),
        ("print(1)\n", ("train.py cannot be measured on one process (it must run 2 or more",)),
    ],
    ids=["fails", "no step"],
)
def test_a_script_that_one_process_cannot_run(text, says, benched):
    seen = benched(text)
    assert seen.code == 2
    assert all(words in seen.err for words in says), seen.err
    assert not seen.out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--steps", "1", "train.py"], "--steps is 1; it takes 2 or more"),
        (["--plot", "speed.png", "train.py"], "matplotlib is missing"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(options, says, tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    if "missing" in says:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.command(["bench", *options]) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert len(err.splitlines()) == 1
    assert not out


# ---- rows


def row_with(*rates: float) -> Row:
    return Row(GLOBAL, Options(nproc=2), 2, 2, rounds=[{"rate": x, "shares": {}} for x in rates])


def test_rounds_are_compared_with_one_process_in_the_same_round():
    plain, ranks = row_with(100, 50, 200), row_with(150, 100, 200)
    assert ranks.speed_up(plain) == 1.5
    assert ranks.of("rate") == 150
    assert ranks.spread == pytest.approx(1 / 3)
    assert row_with(0.0).spread == 0
    assert ranks.speed_up(row_with(0.0)) == 0
