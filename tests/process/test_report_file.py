"""The file of --report has the fields that are documented, and no others; --plot draws."""

from __future__ import annotations

import json

import pytest

from autoddp.tools.record import plot
from tests.support.cli import fork_cli, run_cli

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
    "times": list,
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
    "rank": int,
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
    options = ("--report", "told.json", "--plot", "told.png", "--summary")
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
    assert [times["rank"] for times in found["times"]] == [0, 1]
    for times in found["times"]:
        check(times, TIMES)
    for decision in found["decisions"]:
        check(decision, DECISION)
    lines = {(made["kind"], made["line"]) for made in found["decisions"]}
    assert {("loaders", "train.py:10"), ("gather", "train.py:13")} <= lines
    assert found["gathered"] > 0


@pytest.mark.slow
def test_a_picture_is_drawn_and_its_recording_goes(done):
    ran, folder = done
    pytest.importorskip("matplotlib")
    assert (folder / "told.png").read_bytes().startswith(b"\x89PNG")
    assert ran.err.splitlines()[-1] == (
        "[autoddp] --plot: told.png shows where the time of each step went"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["told.json", "told.png", "train.py"]


@pytest.mark.slow
def test_a_script_without_steps_leaves_no_picture(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "train.py").write_text("print('none')\n")
    done = fork_cli("run", "--nproc", 1, "--plot", "told.png", "train.py", cwd=tmp_path)
    assert (done.rc, done.out) == (0, "none\n")
    assert done.err.splitlines()[-1] == (
        "[autoddp] --plot is told.png, but no step of an optimizer was recorded: "
        "there is no picture"
    )
    assert not (tmp_path / "told.png").exists()


@pytest.mark.slow
def test_ranks_of_another_launcher_draw_nothing_and_say_what_would(tmp_path):
    (tmp_path / "train.py").write_text("print('none')\n")
    names = ["RANK", "LOCAL_RANK", "GROUP_RANK"]
    env = dict.fromkeys(names, "0") | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1")
    env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    # with a rank of another launcher, the command starts anew, too
    done = run_cli("run", "--plot", "told.png", "train.py", cwd=tmp_path, env=env)
    assert (done.rc, done.out) == (2, "")
    assert "another launcher has started this rank" in done.err


@pytest.mark.slow
def test_a_summary_is_said_of_a_short_run(done):
    ran, _ = done
    line, head, *rows = [line for line in ran.err.splitlines() if "--plot" not in line][-4:]
    assert line.startswith("[autoddp] 2 ranks, ")
    assert "of the computing was shared" in line
    assert head.startswith("[autoddp] seconds of ")
    assert [row[:16] for row in rows] == ["[autoddp] rank 0", "[autoddp] rank 1"]


def steps(*seconds):
    times = {"loading": 0.25, "gathering": 0.0, "gradients": 0.5}
    return [{"step": n, "times": {"seconds": s} | times} for n, s in enumerate(seconds, 1)]


def test_the_rest_of_a_step_is_computing_and_the_first_is_left_out(tmp_path):
    for rank, seconds in enumerate([(9, 1, 2), (9, 3, 4)]):
        text = "".join(f"{json.dumps(step)}\n" for step in steps(*seconds))
        (tmp_path / f"{rank}.jsonl").write_text(text)
    found = plot.of_ranks(tmp_path)
    assert [found[rank]["computing"] for rank in (0, 1)] == [[0.25, 1.25], [2.25, 3.25]]
    assert found[0]["gradients"] == [0.5, 0.5]


def test_many_steps_are_drawn_by_their_means():
    assert plot.means([1.0, 3.0, 5.0, 7.0, 9.0], 2) == [2.0, 6.0, 9.0]


def test_a_picture_has_a_part_for_each_rank(tmp_path):
    pytest.importorskip("matplotlib")
    curves = {"computing": [0.1] * 450, "gradients": [0.2] * 450}
    for ranks in (1, 6):
        path = tmp_path / f"{ranks}.svg"
        plot.draw(str(path), "train.py", dict.fromkeys(range(ranks), curves))
        assert path.read_text().count("<!-- rank ") == ranks


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--plot", "a/b.png"], "--plot is a/b.png, but there is no folder a; make it first"),
        (["--plot", "b.mp3"], "--plot is b.mp3, whose ending names no kind of picture; give one"),
        (["--summary", "-q"], "--summary is given with --quiet, where nothing is said; leave out"),
        (
            ["--plot", "b.png", "--record", "r", "--record-kind", "numbers"],
            "--plot is b.png with --record-kind numbers, where no times are recorded; leave out",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_runs(options, said, tmp_path):
    pytest.importorskip("matplotlib")
    # with several nodes, the command starts anew with the hash seed that all of them have
    run = run_cli if "--nnodes" in options else fork_cli
    done = run("run", *options, "none.py", cwd=tmp_path)
    assert (done.rc, done.out) == (2, "")
    assert done.err.startswith(f"[autoddp] {said}")
    assert done.err.count("\n") == 1
