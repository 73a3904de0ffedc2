"""`autoddp bench` counts what a script trains on, tells where its time goes, and what to do."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autoddp import cli
from autoddp.comm.group import Group
from autoddp.comm.world import World
from autoddp.errors import AutoDDPError, BadInput
from autoddp.options import Options
from autoddp.process.devices import There
from autoddp.process.script import Script
from autoddp.tools.bench import command, guest, plot, remote, replicate, show
from autoddp.tools.bench.advice import RULES, RowEvidence, sentences
from autoddp.tools.bench.figures import Figures, Row, last_number, last_tenth, percentile, warm_up
from autoddp.tools.bench.variants import DATA_PARALLEL, GLOBAL, LOCAL, PLAIN, Way, ways
from autoddp.tools.record.phases import RECORDING, Parts
from autoddp.tools.record.recorder import Enough, Recorder
from autoddp.tools.record.settings import RecordSettings
from autoddp.tools.rehearse.parents import Parents
from autoddp.training.replica import Replicas
from tests.support.cli import environ
from tests.support.warm import leftover

pytestmark = pytest.mark.slow

# 44 rows by 8: five full batches an epoch, and one of 4.
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
# No model either; ranks cannot run it. Only its own frame is a user's.
FAILS = """
    import autoddp
    import torch
    from autoddp.report import users_frame

    assert users_frame().f_back is not None and users_frame(2) is None, users_frame(2)

    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for step in range(8):
        if autoddp.world_size() == 2: raise ValueError("not on ranks")
        weight.square().sum().backward()
        optimizer.step()
"""


@dataclass(frozen=True)
class Seen:
    """What a bench came to."""

    code: int
    data: dict
    out: str
    err: str

    def row(self, kind: str) -> dict:
        (found,) = [row for row in self.data["rows"] if row["row"] == kind]
        return found


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """Bench from this process: all runs of these tests are forked from the same parents."""
    parents = Parents()

    def benched(text: str, **wanted: object) -> Seen:
        folder = tmp_path_factory.mktemp("bench")
        (folder / "here").mkdir()
        (folder / "here" / "train.py").write_text(textwrap.dedent(text))
        out, err = io.StringIO(), io.StringIO()
        found = folder / "found.json"
        with contextlib.chdir(folder / "here"), redirect_stdout(out), redirect_stderr(err):
            what = command.BenchOptions(nproc=(2,), json=str(found), **wanted)
            code = command.run(Script("train.py"), Options(), what, parents)
        assert os.listdir(folder / "here") == ["train.py"], "the user's files are as before"
        data = json.loads(found.read_text()) if found.exists() else {}
        return Seen(code, data, out.getvalue(), err.getvalue())

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield benched
    parents.close()


@pytest.fixture(scope="module")
def seen(benched, tmp_path_factory):
    """All rows, once."""
    picture = tmp_path_factory.mktemp("plot") / "speed.png"
    found = benched(TRAIN, rounds=1, plot=str(picture))
    assert found.code == 0, found
    assert picture.stat().st_size > 1000
    return found


def test_samples_and_steps_are_counted_exactly(seen):
    assert [row["row"] for row in seen.data["rows"]] == [PLAIN, GLOBAL, LOCAL]
    for row in seen.data["rows"]:
        assert row["samples"] == 88, "evaluation is no training"
        assert (row["batch"], row["steps"]) == (8, 12)


def test_shares_are_parts_of_one_step(seen):
    for row in seen.data["rows"]:
        for run in row["rounds"]:
            assert sum(run["shares"].values()) == pytest.approx(1)
            assert all(share >= 0 for share in run["shares"].values())
            assert run["median"] <= run["p95"] <= max(run["step_seconds"])
            assert len(run["step_seconds"]) == run["steps"] - run["warm_up"]
            measured = run["samples"] / run["rate"]
            assert measured > sum(run["step_seconds"]), "warm-up's samples are in neither"
    plain, ranks = seen.row(PLAIN)["shares"], seen.row(GLOBAL)["shares"]
    assert plain["gathering"] == plain["gradients"] == 0
    assert plain["loading"] > 0
    assert ranks["gathering"] > max(0.2, ranks["gradients"]), (
        "rank 0 waits for rank 1's part of the loss"
    )
    assert seen.row(LOCAL)["shares"]["gradients"] > 0.2, "there it waits for its gradients alone"


def test_the_global_view_has_the_losses_of_one_process(seen):
    plain, ranks = (seen.row(kind)["rounds"][0]["losses"] for kind in (PLAIN, GLOBAL))
    assert len(plain) == 12
    assert ranks == pytest.approx(plain, rel=1e-4)


def test_what_is_told(seen):
    plain = seen.row(PLAIN)
    assert plain["printed"] == seen.row(GLOBAL)["printed"]
    assert plain["printed"].startswith("epoch 1: val acc ")
    assert plain["metric"] == 1, "the last number of the line"
    assert plain["printed"] in seen.out
    assert plain["speed-up"] == plain["efficiency"] == 1
    assert seen.row(GLOBAL)["efficiency"] == seen.row(GLOBAL)["speed-up"] / 2
    assert all(len(row["rounds"][0]["memory"]) == row["ranks"] for row in seen.data["rows"])
    assert all(memory > 2**26 for row in seen.data["rows"] for memory in row["rounds"][0]["memory"])
    shown = [line for line in seen.out.splitlines() if not line.startswith("[autoddp]")]
    assert max(map(len, shown)) <= 100
    assert "…" not in seen.out
    assert "[autoddp] DataParallel is left out: it takes several GPUs" in seen.out
    assert "[autoddp] advice: gathering takes " in seen.out
    assert seen.err == ""


def test_a_script_without_a_loader(benched):
    seen = benched(BY_HAND, rounds=2)
    assert seen.code == 0
    assert [row["row"] for row in seen.data["rows"]] == [PLAIN, GLOBAL]
    for row in seen.data["rows"]:
        assert (row["steps"], row["samples"], row["batch"]) == (7, 42, 6)
    shares = seen.row(GLOBAL)["shares"]
    assert shares["gradients"] > max(0.2, shares["gathering"]), (
        "rank 0 waits for rank 1 in DDP's buckets"
    )
    plain, ranks = ([run["metric"] for run in seen.row(kind)["rounds"]] for kind in (PLAIN, GLOBAL))
    assert plain[0] < ranks[0] < plain[1] < ranks[1], "rows alternate"
    assert any("no DataLoader makes this script's batches" in note for note in seen.data["notes"])


def test_a_row_that_fails_leaves_the_others(benched):
    seen = benched(FAILS, rounds=1, steps=6)
    assert seen.code == 1
    assert seen.row(GLOBAL)["failed"][-1] == "ValueError: not on ranks"
    assert "ValueError: not on ranks" in seen.out
    assert seen.row(PLAIN)["samples"] == 6
    assert "no batch was seen at all: a sample is a step" in seen.out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("print(1)\nraise KeyError('x')\n", ("train.py ends with exit code 1", "KeyError: 'x'")),
        ("print(1)\n", ("train.py makes no optimizer steps on one process", "nothing to measure")),
    ],
    ids=["fails", "no step"],
)
def test_what_one_process_cannot_do(text, says, benched):
    seen = benched(text)
    assert seen.code == 2
    assert all(words in seen.err for words in says), seen.err
    assert not seen.out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "no script given"),
        (["none.py"], "no script at none.py"),
        (["--nproc", "0", "train.py"], "--nproc is 0; a job has at least 1 rank"),
        (["--nproc", "2,x", "train.py"], "--nproc is 'x'; it takes a whole number"),
        (["--rounds", "0", "train.py"], "--rounds is 0"),
        (["--steps", "1", "train.py"], "--steps is 1; it takes 2 or more"),
        (["--json", "no/where.json", "train.py"], "there is no folder no"),
        (["--plot", "no/where.png", "train.py"], "there is no folder no"),
        (["--plot", "speed.png", "train.py"], "matplotlib is missing"),
        (["--nnodes", "0,2", "train.py"], "--nnodes is 0; a row is of at least 1 node"),
        (
            ["--nnodes", "1,2", "train.py"],
            "--nnodes is 1,2 without --master-addr; give the address of node 0",
        ),
        (
            ["--node-rank", "1", "train.py"],
            "--node-rank is 1 with --nnodes 1; give the number of nodes there",
        ),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(options, says, tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    if "missing" in says:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.command(["bench", *options]) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert len(err.splitlines()) == 1
    assert not out


def test_ctrl_c_ends_all(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "tmp").mkdir()
    waits = f"import time\nopen({str(tmp_path / 'begun')!r}, 'w').close()\ntime.sleep(60)\n"
    (tmp_path / "here" / "train.py").write_text(waits)
    process = subprocess.Popen(
        [sys.executable, "-m", "autoddp", "bench", "train.py"],
        cwd=tmp_path / "here",
        env=environ({"TMPDIR": str(tmp_path / "tmp")}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in out + err
    assert not leftover(process.pid)
    assert not list((tmp_path / "tmp").iterdir())
    assert os.listdir(tmp_path / "here") == ["train.py"]


# ---- the recorder


def recorder_of(folder: Path, world: World, steps: int | None = None) -> Recorder:
    """A recorder of times alone."""
    return Recorder(RecordSettings(str(folder), numbers=False, steps=steps), world, {})


@pytest.fixture
def recorded(tmp_path):
    """A recorder of this process, and the steps that it has written when asked."""
    with ExitStack() as undo:
        recorder = recorder_of(tmp_path, World())
        before = torch.autograd.backward, vars(DataLoader)["__iter__"]
        recorder.setup(undo)

        def steps() -> list[dict]:
            recorder.close(0)
            lines = (tmp_path / "0.jsonl").read_text().splitlines()
            return [entry.get("times", entry) for entry in map(json.loads, lines)]

        yield recorder, steps
    assert torch.autograd.backward is before[0]
    assert vars(DataLoader)["__iter__"] is before[1]


class Slow(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, number):
        time.sleep(0.01)
        return torch.ones(3)


def test_loading_is_what_a_slow_data_set_takes(recorded):
    _, steps = recorded
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for batch in DataLoader(Slow(), batch_size=2):
        (batch * weight).sum().backward()
        optimizer.step()
    *found, end = steps()
    assert [step["rows"] for step in found] == [2, 2, 2]
    assert all(step["loading"] >= 0.02 for step in found)
    assert all(step["loading"] <= step["seconds"] for step in found)
    assert len(end["curve"]) == 3


def test_an_evaluation_is_in_no_step(recorded):
    _, steps = recorded
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        for (batch,) in DataLoader(TensorDataset(torch.ones(3, 3)), batch_size=3):
            (batch * weight).sum().backward()
            optimizer.step()
        for _ in DataLoader(Slow(), batch_size=3):
            time.sleep(0.05)
    *found, _ = steps()
    assert [step["rows"] for step in found] == [3, 3, 3]
    assert all(step["seconds"] < 0.05 for step in found[1:])


def test_what_is_looked_at_on_ranks_is_put_back(tmp_path):
    owners = (
        (Group, "all_reduce"),
        (Group, "all_gather"),
        (Replicas, "average"),
        (Replicas, "arm"),
    )
    before = [vars(owner)[name] for owner, name in owners]
    with ExitStack() as undo:
        recorder = recorder_of(tmp_path, World(0, 2, 0, 2))
        recorder.setup(undo)
        assert all(
            vars(owner)[name] is not old for (owner, name), old in zip(owners, before, strict=True)
        )
    recorder.close(0)
    assert [vars(owner)[name] for owner, name in owners] == before


def test_nested_parts_count_as_the_outermost():
    parts = Parts()
    with parts.spend("gradients"):
        time.sleep(0.01)
        with parts.spend("gathering"):
            time.sleep(0.01)
    found = parts.record()
    assert found["gathering"] == 0
    assert 0.02 <= found["gradients"] <= found["seconds"]


def test_what_recording_takes_is_no_part_of_a_step():
    parts = Parts()
    with parts.spend(RECORDING):
        time.sleep(0.2)
        with parts.spend("gathering"):
            time.sleep(0.1)
    found = parts.record()
    assert set(found) == {"seconds", "loading", "gathering", "gradients"}
    assert found["seconds"] < 0.2
    assert found["gathering"] == 0


def test_what_a_step_is(recorded):
    """Gradients accumulated; two optimizers after one backward; a subclass calling its parent."""

    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    _, steps = recorded
    weight, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    first, second = Own([weight], lr=0.1), torch.optim.SGD([other], lr=0.1)
    for number, (batch,) in enumerate(DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=2)):
        (batch * weight * other).sum().backward()
        if number % 2:
            first.step()
            second.step()
    *found, end = steps()
    assert [(step["rows"], step["backwards"]) for step in found] == [(4, 2), (4, 2)]
    assert len(end["curve"]) == 4


def test_a_scaled_loss_is_told_unscaled(recorded):
    _, steps = recorded
    weight = nn.Parameter(torch.full((3,), 2.0))
    torch.amp.GradScaler("cpu", init_scale=1024.0).scale(weight.sum()).backward()
    assert steps()[-1]["curve"] == [6.0]


def test_enough_steps_end_the_script(recorded):
    recorder, _ = recorded
    recorder.settings = replace(recorder.settings, steps=2)
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    weight.sum().backward()
    with pytest.raises(Enough):
        optimizer.step()


# ---- figures, advice, ways

WAY = Way(GLOBAL, Options(nproc=2), 2)
PARTS = {"loading": 0.1, "gathering": 0.2, "gradients": 0.1, "computing": 0.6}
RUN = Figures(
    9, 2, 72, 8.0, 100.0, 0.01, 0.02, PARTS, [5, 7], False, 1, 0.5, [0.5], "acc 0.9", 0.9, 1.0
)


def row_of(way: Way, *rates: float) -> Row:
    return Row(way, [replace(RUN, rate=rate) for rate in rates])


def test_statistics():
    assert [warm_up(steps) for steps in (2, 7, 12, 20, 1000)] == [1, 1, 3, 5, 5]
    assert percentile([3.0, 1.0, 2.0], 0.95) == 3
    assert percentile([float(k) for k in range(100)], 0.95) == 94
    assert last_tenth([1.0] * 18 + [2.0, 4.0]) == 3
    assert last_tenth([1.0, 5.0]) == 5
    assert last_tenth([]) is None
    assert last_number("epoch 3: acc 97.5%") == 97.5
    assert last_number("loss -1.5e-3.") == -1.5e-3
    assert last_number("done") is None


def test_rounds_are_compared_with_one_process_in_the_same_round():
    plain, ranks = row_of(WAY, 100, 50, 200), row_of(WAY, 150, 100, 200)
    assert ranks.speed_up(plain) == 1.5
    assert ranks.of("rate") == 150
    assert ranks.spread == pytest.approx(1 / 3)
    assert ranks.memory == 7
    assert row_of(WAY, 0.0).spread == 0
    assert ranks.speed_up(row_of(WAY, 0.0)) is None
    assert plot.curves([plain, ranks]) == {GLOBAL: [(2, 1.5)]}


CASE = RowEvidence(
    title="global view, 4 ranks",
    kind=GLOBAL,
    ranks=4,
    batch=64,
    loading=0.05,
    gathering=0.05,
    gradients=0.05,
    speed_up=3.0,
    spread=0.02,
    loss=0.5,
    plain_loss=0.5,
    plain_median=0.1,
    threads=1,
    cores=8,
    gpus=0,
)
ONE = {"title": PLAIN, "kind": PLAIN, "ranks": 1, "speed_up": 1.0}
ADVICE = {
    "loading": (
        {"loading": 0.61},
        "data loading takes 61% of the step (global view, 4 ranks): more workers",
    ),
    "loading, one": (
        ONE | {"loading": 0.4},
        "data loading takes 40% of the step (plain): more workers help",
    ),
    "few rows": ({"batch": 2}, "the global batch of 2 has fewer rows than ranks"),
    "small batch": (
        {"batch": 16, "speed_up": 0.5},
        "a batch of 16 rows leaves few of them to each rank",
    ),
    "gathering": (
        {"gathering": 0.3},
        "gathering takes 30% of the step (global view, 4 ranks): see what",
    ),
    "gradients": ({"gradients": 0.3}, "waiting for gradients takes 30% of the step"),
    "cores": ({"cores": 2}, "4 ranks share 2 cores"),
    "GPUs": ({"gpus": 1}, "4 ranks share fewer GPUs (1)"),
    "small model": (
        {"speed_up": 0.5, "plain_median": 0.001},
        "a step of one process takes 0.001 s",
    ),
    "threads": (ONE | {"threads": 8}, "one process computes by 8 threads already"),
    "wrong": (
        {"loss": 0.6},
        "the loss of global view, 4 ranks is not that of one process (0.6, 0.5)",
    ),
    "noise": ({"spread": 0.2}, "rounds of one row differ by ±20%"),
}


@pytest.mark.parametrize(("changes", "says"), ADVICE.values(), ids=ADVICE)
def test_advice(changes, says):
    (told,) = sentences([replace(CASE, **changes)])
    assert told.startswith(says)


def test_every_rule_is_tried_and_silent_where_all_is_well():
    assert len(ADVICE) == len(RULES)
    assert sentences([CASE]) == ["no part of a step stands out"]
    assert sentences([replace(CASE, kind=LOCAL, loss=0.8)])[0].startswith("no part")
    assert sentences([replace(CASE, loss=None, plain_loss=None)])[0].startswith("no part")


def test_the_heaviest_row_is_spoken_of_and_the_fastest_named():
    cases = [
        replace(CASE, **ONE),
        replace(CASE, gathering=0.3),
        replace(CASE, title="other", gathering=0.4, kind=LOCAL, speed_up=3.5),
    ]
    first, second = sentences(cases)
    assert first.endswith("global view, 4 ranks, 3.00 times its speed; of all: other, 3.50")
    assert second.startswith("gathering takes 40% of the step (other)")


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_null_in_the_json(loss, tmp_path):
    wanted = command.BenchOptions(json=str(tmp_path / "found.json"))
    rows = [Row(WAY, [replace(RUN, loss=loss, losses=[0.5, loss])])]
    assert show.finish(("train.py", []), rows, [], wanted, True, show.Machine(2, 0)) == 0

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    data = json.loads((tmp_path / "found.json").read_text(), parse_constant=refuse)
    (row,) = data["rows"]
    assert (row["loss"], row["rounds"][0]["loss"]) == (None, None)
    assert row["rounds"][0]["losses"] == [0.5, None]
    assert row["rate"] == 100


def test_ways():
    found, left_out = ways(Options(), [1, 2], There())
    assert [(way.kind, way.ranks) for way in found] == [
        (PLAIN, 1),
        (GLOBAL, 1),
        (GLOBAL, 2),
        (LOCAL, 2),
    ]
    assert left_out == ["DataParallel is left out: it takes several GPUs, and there is none"]
    found, left_out = ways(Options(), [2], There("cuda", ("4", "5", "6"), "nccl"))
    assert [(way.kind, way.devices) for way in found[:2]] == [(PLAIN, 1), (DATA_PARALLEL, 3)]
    assert found[0].environ == {"CUDA_VISIBLE_DEVICES": "4"}, "one process has one GPU"
    assert not left_out
    found, left_out = ways(Options(), [2], There("npu", ("4", "5", "6"), "hccl"))
    assert [way.kind for way in found[:2]] == [PLAIN, GLOBAL]
    assert found[0].environ == {"ASCEND_RT_VISIBLE_DEVICES": "4"}
    assert left_out == ["DataParallel is left out: torch scatters to CUDA alone, and here is npu"]
    assert command.counts((), 0) == [2]
    assert command.counts((), 8) == [2, 4, 8]
    assert command.counts((4, 1, 4), 8) == [1, 4]


def test_ways_of_several_nodes():
    there = Options(nnodes=3, master_addr="10.0.0.1", master_port=29500)
    found, _ = ways(there, [1, 2], There(), [1, 3])
    assert [(way.kind, way.count, way.devices) for way in found if way.kind in (PLAIN, GLOBAL)] == [
        (PLAIN, "1", 1),
        (GLOBAL, "1", 1),
        (GLOBAL, "2", 2),
        (GLOBAL, "3x1", 3),
        (GLOBAL, "3x2", 6),
    ]
    assert [way.options.master_addr for way in found if way.nodes == 1] == [None] * 4
    assert found[-1].title == "local view, 6 ranks on 3 nodes"
    plain, ranks = row_of(found[0], 100), row_of(found[-1], 300)
    assert plot.curves([plain, ranks]) == {f"{LOCAL}, 3 nodes": [(6, 3.0)]}


def test_node_0_takes_those_in_that_it_waits_for(tmp_path, capfd):
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    here = Options(nnodes=2, master_addr="127.0.0.1", master_port=port)
    said = [b"GET\n", b'[2, ["train.py"]]\n', b'[1, ["train.py"]]\n']
    answers, lines = [], []

    def come():
        for words in said:
            line = guest.find(replace(here, node_rank=1, quiet=True))
            line.file.write(words)
            answers.append(line.file.readline())
            lines.append(line)
        answers.append(line.file.readline())
        for line in lines:
            line.close()

    thread = threading.Thread(target=come)
    thread.start()
    with remote.Others(here, ["train.py"]) as others:
        others.meet(tmp_path)
        others.code = 3
    thread.join(timeout=240)
    stranger, refused, taken, end = answers
    assert stranger == b""
    assert b"--node-rank is 2, which node 0 does not wait for" in refused
    assert json.loads(taken) == {"root": str(tmp_path)}
    assert json.loads(end) == {"end": 3}
    assert capfd.readouterr().err == f"[autoddp] waiting for 2 nodes at 127.0.0.1:{port}\n"


@pytest.mark.parametrize("shared", [False, True])
def test_others_cannot_read_what_a_node_keeps(shared, tmp_path):
    root = tmp_path / "above" / "autoddp-x"
    if shared:
        root.mkdir(parents=True)
    before = os.umask(0o022)
    try:
        host = guest.Guest(Script("train.py"), "", root=root, node=1)
    finally:
        os.umask(before)
    ours = root / "node1" if shared else root
    assert ours.stat().st_mode & 0o77 == 0
    host.parents.close()
    host.close()
    assert not ours.exists()
    assert root.exists() == shared


def test_a_node_that_ends_during_a_run_is_missed(tmp_path):
    ours, theirs = socket.socketpair()
    others = remote.Others(Options(nnodes=2, master_addr="127.0.0.1"), ["train.py"])
    others.lines[1] = remote.NodeLine(1, ours)
    host = remote.Host(Script("train.py"), "", root=tmp_path, others=others)
    host._look("global view", 1)
    theirs.send(b"[{}, {}]\n")
    host._look("global view", 1)
    assert others.gather(2) == [[{}, {}]]
    theirs.close()
    with pytest.raises(AutoDDPError, match="node 1 has ended, or is none; see what it said there"):
        host._look("global view", 1)
    others.lines[1].close()
    host.parents.close()


def test_data_parallel_leaves_alone_what_is_on_no_gpu():
    plain = nn.Module.__call__
    with ExitStack() as undo:
        replicate.setup(undo)
        assert nn.Module.__call__ is not plain
        assert nn.Linear(3, 1)(torch.ones(2, 3)).shape == (2, 1)
    assert nn.Module.__call__ is plain


def test_a_job_that_a_launcher_started_is_refused(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("RANK", "0")
        patch.setenv("WORLD_SIZE", "2")
        with pytest.raises(BadInput, match="autoddp bench starts ranks by itself"):
            command.run(Script("train.py"), Options(), command.BenchOptions())


def test_paths(tmp_path):
    with pytest.raises(BadInput, match="there is no folder"):
        command.BenchOptions(json=str(Path(tmp_path, "no", "found.json")))
