"""`autoddp verify` finds a right script right, and of a wrong one the step, number and cause."""

from __future__ import annotations

import contextlib
import io
import json
import operator
import os
import pty
import signal
import sys
import tempfile
import textwrap
import threading
import time
import tracemalloc
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process.script import Script
from autoddp.tools.rehearse.parents import Parents, settled
from autoddp.tools.rehearse.runs import Left, Runner
from autoddp.tools.verify import command
from autoddp.tools.verify.bisection import Bisection
from autoddp.tools.verify.causes import repeats
from autoddp.tools.verify.findings import OTHER, Difference, Findings
from autoddp.tools.verify.outputs import compare_files
from autoddp.tools.verify.placeholder_unpickler import load_checkpoint
from autoddp.tools.verify.show import lines
from autoddp.tools.verify.steps import allowed, compare_ranks
from autoddp.tools.verify.text import line_off
from autoddp.tools.verify.verdict import DIFFERENT, Conclusion
from tests.support.cli import environ
from tests.support.warm import leftover

pytestmark = pytest.mark.slow

TRAIN = """
    import sys, time
    import torch, torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    {before}
    x = torch.randn(40, 6)
    net = {net}
    optimizer = {optimizer}
    data = {data}
    for step, (a, b) in enumerate(DataLoader(data, batch_size=8, shuffle=True)):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(a), b)
        loss.backward()
        {inside}
        optimizer.step()
        print(step, loss.item())
    {after}
"""
PLAIN = {
    "before": "pass",
    "net": "nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 3))",
    "data": "TensorDataset(x, x[:, :3].argmax(1))",
    "optimizer": "torch.optim.Adam(net.parameters(), lr=0.01)",
    "inside": "pass",
    "after": "pass",
}
WRITES = """
    torch.save(net.state_dict(), "net.pt")
    torch.save(net, sys.argv[1] + "/model.pt")
    with open(sys.argv[1] + "/log.txt", "a") as log: log.write(f"loss {loss.item()}\\n")
    import os, shutil
    os.makedirs(sys.argv[1] + "/new/folder"); shutil.rmtree(sys.argv[1] + "/old")
    print(open("data.txt").read(), os.getcwd(), time.time())
"""
AUGMENTED = """
    class Noisy(torch.utils.data.Dataset):
        def __len__(self): return 40
        def __getitem__(self, i): return x[i] + 0.1 * torch.randn(6), x[i, :3].argmax()
"""
WAITS = """
    import autoddp
    if autoddp.world_size() == 2:
        print("after", end="", file=open(sys.argv[1], "w"), flush=True)
        time.sleep(60)
"""
# A bug in a rule of ours: a sum along the batch is computed as a function of each element is.
WRONG_RULE = """
    from autoddp.view import table
    table._RULES[torch.cumsum] = table._RULES[table.POINTWISE]
"""
WRONG_LAYOUT = """
    from autoddp.view import redistribute
    redistribute.agreed_order = lambda local, sizes: list(reversed(redistribute.order_of(local)))
"""
# A module of the user's that is marked rowwise, and mixes rows.
WRONG_MARK = """
    import autoddp
    @autoddp.rowwise
    class Centred(nn.Module):
        def forward(self, h): return h - h.mean(0)
"""
DECIDES = """
    import autoddp
    if autoddp.rank() == 2 and step == 2: optimizer.param_groups[0]["lr"] *= 2
"""
# Two optimizers, one with a closure; a scaler that skips the first step.
MANY = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.randn(24, 4)
    one, two = nn.Linear(4, 3), nn.Linear(3, 1)
    sgd = torch.optim.SGD(one.parameters(), lr=0.1)
    lbfgs = torch.optim.LBFGS(two.parameters(), lr=0.1, max_iter=2)
    scaler, large = torch.amp.GradScaler("cpu"), 1e38
    for (a,) in DataLoader(TensorDataset(x), batch_size=8):
        sgd.zero_grad()
        scaler.scale(one(a).square().mean() * large).backward()
        scaler.step(sgd)
        scaler.update()
        large = 1
        def closure():
            lbfgs.zero_grad()
            loss = (two(one(a).detach()) - a.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss
        print(scaler.get_scale(), lbfgs.step(closure).item())
"""
BY_HAND = """
    import torch
    w = torch.nn.Parameter(torch.ones(3))
    for _ in range(2):
        loss = (w * torch.randn(4, 3)).square().sum()
        loss.backward()
        with torch.no_grad(): w -= 0.1 * w.grad
        w.grad = None
        print(loss.item())
"""

NAMES_OF_RUNS = ("one process", "2 ranks")
STRICTLY = {"nproc": 2, "loading": "auto", "draws": "whole", "quiet": True}


def written(path: Path, **parts: str) -> Path:
    """A script in `path`'s folder, made of parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    filled = {
        k: textwrap.indent(textwrap.dedent(v), "        ").strip()
        for k, v in (PLAIN | parts).items()
    }
    lines = textwrap.dedent(TRAIN).strip().splitlines()
    made = []
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        text = line.strip().format(**filled) if "{" in line and 'f"' not in line else line.strip()
        made += [indent + part.removeprefix("        ") for part in text.splitlines()] or [""]
    path.write_text("\n".join(made) + "\n")
    return path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in folder.rglob("*")
    }


@dataclass(frozen=True)
class Seen:
    """What verify found."""

    code: int
    data: dict
    out: str = ""
    err: str = ""


@pytest.fixture(scope="module")
def verified():
    """Verify a script from this process: all runs in this file are forked from the same parents."""
    parents = Parents()

    def verified(script: Path, *args: str, wanted: dict | None = None, **options: object) -> Seen:
        top = script.parent if options.get("module") else script
        found = top.parent.parent / f"{script.stem}.json"
        before = os.getcwd()
        os.chdir(top.parent)
        try:
            what = Script(
                "pkg.train" if options.get("module") else script.name, args, "module" in options
            )
            chosen = Options(**STRICTLY | options)
            code = command.run(
                what, chosen, command.VerifyOptions(json=str(found), **wanted or {}), parents
            )
        finally:
            os.chdir(before)
        return Seen(code, json.loads(found.read_text()))

    yield verified
    parents.close()


@pytest.fixture(scope="module")
def right(tmp_path_factory, verified):
    """A right script that writes in its folder and outside, verified with all one can ask for."""
    top = tmp_path_factory.mktemp("right")
    script = written(top / "here" / "train.py", after=WRITES)
    (top / "here" / "data.txt").write_text("some data")
    outside = top / "outside"
    (outside / "old").mkdir(parents=True)
    (outside / "old" / "file").write_text("old")
    (outside / "log.txt").write_text("before\n")
    torch.save([1], outside / "model.pt")
    (top / "tmp").mkdir()
    before = snapshot(top / "here"), snapshot(outside)
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setattr(tempfile, "tempdir", str(top / "tmp"))
        wanted = {"float64": True, "plot": str(top / "losses.png")}
        seen = verified(script, str(outside), wanted=wanted, quiet=False)
    after = snapshot(top / "here"), snapshot(outside)
    assert seen.code == 0, seen.data
    return Seen(seen.code, seen.data, out.getvalue(), err.getvalue()), before, after, top


def test_a_right_script_is_equal(right):
    seen, *_ = right
    assert seen.data["verdict"] == "equal"
    assert seen.data["cause"] is None
    counts = seen.data["compared"]
    assert counts["steps"]["compared"] == counts["loss"]["compared"] == 5
    assert counts["parameter"]["compared"] == counts["gradient"]["compared"] == 20
    assert counts["generator"]["compared"] == 15
    assert counts["file"]["compared"] == 3  # none of those that it only reads
    assert all(count["largest relative difference"] < 1e-4 for count in counts.values())
    assert seen.data["among ranks"]["compared"]["steps"]["compared"] == 5
    assert "one process" in seen.data["seconds"]


def test_in_float64_no_rounding_is_left(right):
    seen, *_ = right
    counts = seen.data["float64"]["compared"]
    assert counts["loss"]["compared"] == 5
    assert counts["print"]["compared"] == seen.data["compared"]["print"]["compared"] > 5
    assert counts["file"]["compared"] == 3
    assert counts["file"]["largest relative difference"] < 1e-12
    assert 0 < counts["gradient"]["largest relative difference"] < 1e-12
    assert any(note.startswith("float64: ") for note in seen.data["notes"])


def test_what_it_shows(right):
    seen, *_ = right
    assert seen.out.startswith("[autoddp] equal: in float64 no number is off by more than")
    assert "losses" in seen.out
    assert (
        max(len(line) for line in seen.out.splitlines() if not line.startswith("[autoddp]")) <= 80
    )
    assert seen.err == ""


def test_the_users_files_are_as_before(right):
    _, before, after, top = right
    assert before == after
    assert not list((top / "tmp").iterdir()), "private copies are left behind"


def test_the_plot_is_a_picture(right):
    *_, top = right
    assert (top / "losses.png").read_bytes().startswith(b"\x89PNG")


def test_augmentation_is_named(verified, tmp_path):
    script = written(tmp_path / "here" / "noisy.py", after="pass", data="Noisy()", before=AUGMENTED)
    seen = verified(script, loading="rows")
    assert seen.code == 1
    assert seen.data["cause"]["name"] == "augmentation"
    assert seen.data["cause"]["mend"] == "--loading auto"
    assert "noisy.py:" in seen.data["cause"]["what"]
    assert seen.data["first"][0]["step"] == 1


def test_what_a_clock_makes_differ_is_excused_where_one_process_takes_the_same_time_twice(
    verified, tmp_path, monkeypatch
):
    """Durations, printed to a second: one process takes 1 each time, the ranks take 2."""
    plain, takes = Runner.run, tmp_path / "takes"

    def run(runner, name, options, **how):
        takes.write_text("1.7" if options.nproc == 2 else "0.7")
        return plain(runner, name, options, **how)

    monkeypatch.setattr(Runner, "run", run)
    script = written(
        tmp_path / "here" / "timed.py",
        before="import datetime; began, date = time.perf_counter(), datetime.datetime.now()",
        after=f"time.sleep(float(open({str(takes)!r}).read()))\n"
        "print('took', round(time.perf_counter() - began), 's')\n"
        "print('took', (datetime.datetime.now() - date) // datetime.timedelta(seconds=0.6))",
    )
    seen = verified(script)
    assert seen.code == 0, seen.data
    wanted = [difference["want"] for difference in seen.data["excused"]]
    assert wanted == ["'took 1 s'", "'took 1'"]


def test_what_a_second_run_of_one_process_cannot_tell_is_no_rounding(verified, tmp_path):
    script = written(
        tmp_path / "here" / "twice.py",
        after="import os; print(time.time_ns())\n"
        "assert 'MKL_CBWR' not in os.environ, 'another order'",
    )
    seen = verified(script)
    assert seen.code == 1
    assert not seen.data["excused"]
    notes = [note for note in seen.data["notes"] if note.endswith("nothing is taken for rounding")]
    assert "one process, summing in another order ends in 'AssertionError: another" in notes[0]


def test_a_rule_that_is_wrong_is_told_from_rounding(verified, tmp_path):
    script = written(
        tmp_path / "here" / "sums.py",
        before=WRONG_RULE,
        optimizer="torch.optim.SGD(net.parameters(), lr=0.3)",
        inside="print('at', time.time_ns())",
    )
    script.write_text(script.read_text().replace("net(a)", "net(torch.cumsum(a, 0))"))
    seen = verified(script)
    assert seen.code == 1
    assert seen.data["first"][0] | {"step": 1, "aspect": "loss"} == seen.data["first"][0]
    assert "sums.py:" in seen.data["first"][0]["line"]
    assert seen.data["cause"]["name"] == "rules"
    assert seen.data["cause"]["what"].endswith("with --disable loaders the ranks are equal")
    assert seen.data["cause"]["mend"].startswith("--disable loaders, ")
    differ = {(d["step"], d["aspect"], d["place"]) for d in seen.data["differences"]}
    assert (1, "gradient", "Sequential.0.weight") in differ
    assert (1, "parameter", "Sequential.0.weight") in differ
    assert any("'at " in d["want"] for d in seen.data["excused"]), "the clock's reading"
    assert not seen.data["among ranks"]["differences"]


def test_what_is_marked_rowwise_and_mixes_rows_is_found(verified, tmp_path):
    net = "nn.Sequential(nn.Linear(6, 8), Centred(), nn.Linear(8, 3))"
    seen = verified(written(tmp_path / "here" / "marked.py", before=WRONG_MARK, net=net))
    assert seen.code == 1, seen.out


def test_a_gather_that_changed_a_layout_is_named(verified, tmp_path):
    script = written(tmp_path / "here" / "lies.py", before=WRONG_LAYOUT)
    script.write_text(script.read_text().replace("net(a)", "net(a.flip(0).view(-1).view(a.shape))"))
    seen = verified(script, wanted={"steps": 2})
    assert seen.code == 1
    assert seen.data["cause"]["name"] == "layout"
    assert (
        "size is not compatible with input tensor's size and stride" in seen.data["cause"]["what"]
    )


def test_a_decision_of_one_rank_of_three_is_found(verified, tmp_path):
    script = written(tmp_path / "here" / "decides.py", inside=DECIDES)
    seen = verified(script, wanted={"steps": 4}, nproc=3)
    assert seen.code == 1
    assert seen.data["compared"]["steps"]["compared"] == 4
    assert any("--steps 4" in note for note in seen.data["notes"])
    assert seen.data["cause"]["name"] == "a decision of each rank"
    assert "step 3, decides.py:" in seen.data["cause"]["what"]
    assert (
        "learning rate of group 0 on rank 2, against rank 0: 0.02 instead"
        in seen.data["cause"]["what"]
    )
    assert {d["rank"] for d in seen.data["among ranks"]["differences"]} == {2}


def test_a_seed_that_is_another_each_time_is_found(verified, tmp_path):
    script = written(
        tmp_path / "here" / "seeds.py", before="import os; torch.manual_seed(os.getpid())"
    )
    seen = verified(script, wanted={"steps": 1})
    assert seen.code == 1
    assert seen.data["cause"]["name"] == "not repeatable"


def test_a_script_that_fails_could_not_run(verified, tmp_path):
    seen = verified(written(tmp_path / "here" / "fails.py", inside="raise ValueError('no luck')"))
    assert seen.code == 2
    assert seen.data["error"][-1] == "ValueError: no luck"
    assert list(seen.data["seconds"]) == ["one process"]


def test_ranks_that_fail_differ(verified, tmp_path):
    fails = "import autoddp; assert autoddp.world_size() == 1, 'no ranks please'"
    seen = verified(written(tmp_path / "here" / "fails.py", inside=fails))
    assert seen.code == 1
    assert seen.data["cause"]["name"] == "an error"
    assert seen.data["error"][-1] == "AssertionError: no ranks please"
    assert any("fails.py" in line for line in seen.data["error"])


def test_ranks_that_hang_differ(verified, tmp_path):
    inside = "import autoddp, threading\nif autoddp.rank() and step == 1: threading.Event().wait()"
    seen = verified(written(tmp_path / "here" / "hangs.py", inside=inside), hang_timeout=2)
    assert seen.code == 1
    assert seen.data["cause"]["name"] == "a hang"
    said = seen.data["cause"]["what"]
    assert said.startswith(
        "the ranks hang: for 2 s no rank has got anywhere (missing: rank 1); rank 1 "
    )
    assert "is at hangs.py:" in said


def test_several_optimizers_closures_and_steps_that_are_skipped(verified, tmp_path):
    script = tmp_path / "here" / "many.py"
    script.parent.mkdir()
    script.write_text(textwrap.dedent(MANY))
    seen = verified(script)
    assert seen.code == 0, seen.data
    assert seen.data["compared"]["steps"]["compared"] == 5  # two of SGD, three of LBFGS
    assert seen.data["compared"]["loss"]["compared"] > 6


def test_a_script_without_an_optimizer(verified, tmp_path):
    script = tmp_path / "here" / "by_hand.py"
    script.parent.mkdir()
    script.write_text(textwrap.dedent(BY_HAND))
    seen = verified(script)
    assert seen.code == 0, seen.data
    assert (
        seen.data["compared"]["loss"]["compared"] == seen.data["compared"]["print"]["compared"] == 2
    )
    assert any("no optimizer step was seen" in note for note in seen.data["notes"])


def test_a_module_that_writes_into_a_large_folder_of_data(verified, tmp_path):
    data = tmp_path / "here" / "data"
    data.mkdir(parents=True)
    with open(data / "images.bin", "wb") as file:
        file.truncate(65 * 2**20)  # no room on the disk, and too much to be copied
    (data / "index.txt").write_text("before")
    (data.parent / "pkg").mkdir()
    writes = (
        "import os; assert os.path.islink('data'); print('after', file=open('data/index.txt', 'w'))"
    )
    script = written(
        data.parent / "pkg" / "train.py", before=writes + "; open('data/new', 'w').close()"
    )
    seen = verified(script, wanted={"steps": 1}, module=True)
    assert seen.code == 0, seen.data
    assert seen.data["compared"]["steps"]["compared"] == 1
    assert seen.data["compared"]["file"]["compared"] == 2  # one is new
    assert (data / "index.txt").read_text() == "before"
    assert not (data / "new").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-n", "1"], "--nproc is 1"),
        (["--steps", "0"], "--steps is 0"),
        (["--plot", "no/where.png"], "there is no folder no"),
        (["--json", "no/where.json"], "there is no folder no"),
        (["--disable", "nothing"], "--disable is 'nothing'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(options, says, tmp_path, monkeypatch):
    from autoddp import cli

    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=says):
        cli.parse(["verify", *options, "train.py"])()


def test_numbers_in_lines():
    assert line_off("loss 0.5", "loss 0.5", 1e-9) == 0
    assert line_off("loss 0.5", "lost 0.5", 1e-9) == OTHER
    assert line_off("loss 0.50", "loss 0.51", 1e-9) > 1e-3
    # the last digit, rounded the other way
    assert line_off("loss 0.5012", "loss 0.5013", 1e-9) <= 1e-9
    assert line_off("right 7 of 9", "right 8 of 9", 0.5) > 0.5
    assert line_off("loss nan", "loss 1.0", 1e-9) == OTHER
    assert line_off("loss nan", "loss nan", 1e-9) == 0


def test_what_one_process_differs_in_too_is_excused():
    found, control = Findings(), Findings()
    for findings, sizes in ((found, (0.2, 1e-5, OTHER)), (control, (0.1, 1e-7, OTHER))):
        for place, size in zip(("a", "b", "c"), sizes, strict=True):
            findings.differs(Difference("print" if place != "b" else "loss", place, "", "", size))
    found.excuse(control)
    assert [d.place for d in found.differences] == ["b"]
    assert [d.place for d in found.excused] == ["a", "c"]


def test_the_json_counts_what_the_table_counts():
    found, control = Findings(), Findings()
    for findings in (found, control):
        findings.add("print", 0.1)
        findings.differs(Difference("print", "stdout line 1", "0.5", "0.6", 0.1))
    found.add("loss", 0.2)
    found.differs(Difference("loss", "", "0.5", "0.7", 0.2))
    found.excuse(control)
    steps = {0: [record(1, 0.5), record(2, 0.5)], 1: [record(1, 0.5), record(2, 0.7)]}
    among = compare_ranks(steps)
    verdict = Conclusion("train.py", 2, NAMES_OF_RUNS, DIFFERENT, "", found, among)
    data, shown = verdict.data(), [" ".join(line.split()) for line in lines(verdict)]
    assert {name: count["differ"] for name, count in data["compared"].items()} == {
        "print": 0,
        "loss": 1,
    }
    assert "printed lines 1 0 1.0e-01" in shown
    assert "losses 1 1 2.0e-01" in shown
    assert data["among ranks"]["compared"]["steps"]["differ"] == 1
    assert "steps, rank against rank 2 1" in shown


def record(step: int, loss: float) -> dict:
    """What a rank records of a step."""
    nothing = {"gradients": [], "parameters": [], "generators": {}}
    at = {"step": step, "line": "train.py:3", "optimizer": 0, "names": [], "dtypes": ["float64"]}
    return at | nothing | {"losses": [["train.py:2", loss]], "lr": [0.1]}


@pytest.mark.parametrize(
    ("found", "repeated"),
    [
        (Difference("generator", "torch", "one state", "another", OTHER, 1, "train.py:3"), False),
        (Difference("loss", "", "0.5", "0.7", 0.3, 1, "train.py:9"), False),
        (Difference("loss", "", "0.5", "0.5", 1e-6, 1, "train.py:9"), True),
        (Difference("loss", "", "0.5", "0.7", 0.3, 500, "train.py:9"), True),  # chaos
        (Difference("print", "stdout line 1", "0.5", "0.7", 0.3), True),  # a clock
    ],
    ids=lambda value: f"{value.aspect}-{value.size}" if isinstance(value, Difference) else "",
)
def test_one_process_that_differs_from_itself_from_the_start_does_not_repeat(found, repeated):
    control = Findings()
    control.differs(found)
    causes = list(repeats(control))
    assert (not causes) == repeated
    assert repeated or "seed all generators" in causes[0].mend


def test_ctrl_c_on_a_terminal_ends_all_and_puts_everything_back(tmp_path):
    there = tmp_path / "there"
    script = written(tmp_path / "here" / "stopped.py", inside=WAITS)
    there.write_text("before")
    (tmp_path / "tmp").mkdir()
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(script.parent)
        command = [sys.executable, "-m", "autoddp", "verify", script.name, str(there)]
        os.execve(
            sys.executable, command, environ({"TMPDIR": str(tmp_path / "tmp"), "TERM": "xterm"})
        )
    shown = bytearray()
    reading = threading.Thread(target=read_all, args=(terminal, shown))
    reading.start()
    deadline = time.monotonic() + 100
    while there.read_text() != "after":
        assert time.monotonic() < deadline, bytes(shown)
        time.sleep(0.02)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGINT
    assert not leftover(pid)
    reading.join()
    os.close(terminal)
    assert b"[autoddp] 2 ranks" in shown, "the progress"
    assert there.read_text() == "before"
    assert not list((tmp_path / "tmp").iterdir())


def read_all(terminal: int, shown: bytearray) -> None:
    """Until the last who has it open closes it."""
    with contextlib.suppress(OSError):
        while got := os.read(terminal, 4096):
            shown += got


def test_what_is_allowed_grows_in_float32_alone():
    assert allowed(["float64"], 1) == allowed(["float64"], 1000) == 1e-9
    assert allowed(["float32"], 1) < allowed(["float32"], 100) < allowed(["float32"], 1000) == 1e-2
    assert allowed(["bfloat16", "float32"], 1) == 5e-2


def test_a_checkpoint_of_unknown_classes_is_loaded(tmp_path):
    import sys
    import types

    module = types.ModuleType("gone")
    exec("class Net:\n    def __init__(self): self.w = 1.5", module.__dict__)
    module.Net.__module__ = "gone"
    sys.modules["gone"] = module
    try:
        for name in "ab":
            torch.save({"net": module.Net(), "w": torch.ones(2)}, tmp_path / name)
    finally:
        del sys.modules["gone"]
    one, two = (load_checkpoint(tmp_path / name) for name in "ab")
    assert type(one["net"]) is type(two["net"])
    assert one["net"] == two["net"]
    assert one["net"]["state"] == {"w": 1.5}


def search(*mends: str, steps: bool = True) -> tuple[str, str, int]:
    """What a search finds if leaving out all of these mends the ranks, and in how many runs."""
    bisection = Bisection(lambda left_out: set(mends) <= set(left_out))
    cause = next(bisection.cause(steps), None)
    found = ("unknown", "") if cause is None else (cause.name, cause.mend.split(", and")[0])
    return *found, len(bisection.known)


def test_the_search_names_as_few_features_as_will_do():
    assert search("loaders") == ("rules", "--disable loaders", 2)
    assert search("modules") == ("rules", "--disable modules", 3)
    assert search("modules", "loaders") == ("rules", "--disable modules,loaders", 3)
    assert search("gradients")[:2] == ("gradients", "--disable modules,loaders,gradients")
    assert search("clocks")[:2] == ("clocks", "--disable clocks")


def test_the_search_ends():
    assert search("nothing") == ("unknown", "", 4)
    assert search("clocks", steps=False) == ("unknown", "", 1)


def test_the_answer_comes_first_and_the_table_is_narrow():
    findings = Findings()
    at = {"step": 3, "line": "train.py:12"}
    for place in "abcde":
        found = Difference(
            "gradient", f"Net.{place}.weight", "0.123456789", "0.2", 0.4, **at, part="norm"
        )
        findings.differs(found)
    shown = lines(Conclusion("train.py", 2, NAMES_OF_RUNS, DIFFERENT, "2 ranks differ", findings))
    assert shown[0] == "[autoddp] different: 2 ranks differ"
    assert " ".join(shown[2].split()) == "first divergence, step 3 one process 2 ranks off by"
    assert (
        " ".join(shown[3].split())
        == "train.py:12 gradient Net.a.weight, norm 0.123456789 0.2 4.0e-01"
    )
    assert len([line for line in shown if "Net." in line]) == 4
    assert max(map(len, shown)) <= 80


def test_large_files_are_compared_piece_by_piece(tmp_path):
    def left(name: str) -> Left:
        folder = tmp_path / name
        folder.mkdir()
        with open(folder / "large.bin", "wb") as file:
            file.truncate(2**27)
        return Left(name, 0, {}, {}, folder=folder, outside=tmp_path / "outside")

    findings, pair = Findings(), (left("one"), left("two"))
    tracemalloc.start()
    compare_files(findings, *pair, 1e-9)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert findings.equal
    assert most < 2**20


def pair_of(folder: Path) -> tuple[Left, Left]:
    """What two runs left, which wrote nothing yet."""
    for name in ("one", "two"):
        (folder / name).mkdir()
    one, two = (
        Left(name, 0, {}, {}, folder=folder / name, outside=folder / "outside")
        for name in ("one", "two")
    )
    return one, two


def test_a_folder_where_there_was_a_file_is_compared(tmp_path, monkeypatch):
    pair = pair_of(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "it").touch()
    for left in pair:
        (left.folder / "it").mkdir()
        (left.folder / "it" / "log.txt").write_text("a line")
    monkeypatch.chdir(tmp_path / "here")
    findings = Findings()
    compare_files(findings, *pair, 1e-9)
    assert findings.equal
    assert findings.counts["file"].compared == 1


def test_files_whose_names_differ_by_the_clock_alone_are_all_compared(tmp_path):
    pair = pair_of(tmp_path)
    for left, day, values in zip(pair, (1, 2), ((0.5, 0.6, 0.7), (0.5, 0.8, 0.7)), strict=True):
        for second in (2, 0, 1):  # the order of time is not that of the folder
            path = left.folder / f"runs-2025010{day}-12000{second}"
            path.mkdir()
            (path / "log.txt").write_text(f"loss {values[second]}\n")
    findings = Findings()
    compare_files(findings, *pair, 1e-9)
    assert [(d.place, d.want, d.got) for d in findings.differences] == [
        ("runs-TIME/log.txt (2) line 1", "'loss 0.6'", "'loss 0.8'")
    ]
    assert findings.counts["file"].compared == 3


class Unloadable:
    """An object that is pickled, but raises when it is loaded."""

    def __reduce__(self):
        return operator.getitem, ({}, "no key")


@pytest.mark.parametrize("name", ["archive", "arrays", "checkpoint"])
def test_files_that_cannot_be_loaded_differ_by_their_bytes(name, tmp_path):
    pair = pair_of(tmp_path)
    for number, left in enumerate(pair):
        path = left.folder / "it"
        if name == "checkpoint":
            torch.save({"it": Unloadable(), "number": number}, path)
            continue
        with zipfile.ZipFile(path, "w") as archive:
            inside = "a.txt" if name == "archive" else "a.npy"
            archive.writestr(inside, f"number {number}")
        path.write_bytes(path.read_bytes().replace(b"number", b"nummer"))  # another checksum
    findings = Findings()
    compare_files(findings, *pair, 1e-9)
    assert [(d.aspect, d.place, d.got) for d in findings.differences] == [
        ("file", "it", "other bytes")
    ]
    assert findings.counts["file"].compared == 1


def test_paths_to_folders_beside_this_one_hold_in_a_copy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = settled({"PYTHONPATH": f"src:../lib:{tmp_path}/in:/else"})["PYTHONPATH"]
    assert found == f"src:{tmp_path.parent}/lib:{tmp_path}/in:/else"


def test_a_plot_without_matplotlib_is_refused_before_anything_runs(tmp_path, monkeypatch):
    from autoddp.tools.rehearse import picture

    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    with pytest.raises(BadInput, match=r"matplotlib is missing; pip install 'autoddp\[plot\]'"):
        picture.check(str(tmp_path / "losses.png"))
