"""`autoddp verify` finds a right script right, and of a wrong one the step, number and cause."""

from __future__ import annotations

import contextlib
import io
import json
import math
import operator
import os
import pty
import signal
import sys
import tempfile
import textwrap
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process.script import Script
from autoddp.tools.record.recording import Recording
from autoddp.tools.verify import command
from autoddp.tools.verify.causes import unrepeated
from autoddp.tools.verify.findings import OTHER, Difference, Findings
from autoddp.tools.verify.load import load_checkpoint
from autoddp.tools.verify.outputs import Again, compare_files
from autoddp.tools.verify.steps import compare_runs
from autoddp.tools.verify.text import line_off, shown
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
    with open("log.txt", "a") as log: log.write(f"loss {loss.item()}\\n")
    import os, shutil
    os.makedirs("new/folder"); shutil.rmtree("old")
    print(open("data.txt").read(), open("../beside/x.txt").read(), os.getcwd(), time.time())
"""
WAITS = """
    import autoddp
    if autoddp.world_size() == 2:
        print("after", end="", file=open(sys.argv[1], "w"), flush=True)
        time.sleep(60)
"""
# It mixes rows, and so may not be computed on the rows of a rank.
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

# Bars on both streams, nested ones, a line drawn again and again, a clock in a line and in names.
BARS = """
    import sys, time, datetime
    import autoddp
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from tqdm import tqdm, trange

    torch.manual_seed(0)
    x = torch.randn(24, 4)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    began = time.time()
    for epoch in trange(2, desc="epochs"):
        bar = tqdm(DataLoader(TensorDataset(x), batch_size=8), leave=False, file=sys.stdout)
        for number, (a,) in enumerate(bar):
            loss = (net(a) - a.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.set_postfix(loss=loss.item())
            print(f"\\r{{number}} of 3, {{time.time() - began:.1f}} s", end="", file=sys.stderr)
    loss = loss {wrong}  # which is printed and written alone
    for a in tqdm([1, 2], desc=f"loss {{loss.item():.5f}}"):
        time.sleep(0.01 + (autoddp.world_size() > 1))  # another text: 00:02 in place of 00:00
    print(f"took {{time.time() - began:.0f}} s, loss {{loss.item():.5f}}")
    open(datetime.datetime.now().strftime("%b%d_%H-%M-%S.txt"), "w").write(f"{{loss.item()}}\\n")
    torch.save({{"seconds": time.perf_counter(), "loss": loss.item()}}, "end.pt")
"""

STRICTLY = {"nproc": 2, "quiet": True}


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

    @property
    def counts(self) -> dict:
        return self.data["findings"]["compared"]

    @property
    def differences(self) -> list:
        return self.data["findings"]["differences"]


def verified(script: Path, *args: str, wanted: dict | None = None, **options: object) -> Seen:
    """What `autoddp verify` finds of a script, from its folder."""
    top = script.parent if options.get("module") else script
    found = top.parent.parent / f"{script.stem}.json"
    name = "pkg.train" if options.get("module") else script.name
    with contextlib.chdir(top.parent):
        what, chosen = Script(name, args, "module" in options), Options(**STRICTLY | options)
        code = command.run(what, chosen, command.VerifyOptions(json=str(found), **wanted or {}))
    return Seen(code, json.loads(found.read_text()))


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """A right script that writes in its folder and outside, verified with all one can ask for."""
    top = tmp_path_factory.mktemp("right")
    script = written(top / "here" / "train.py", after=WRITES)
    (top / "here" / "data.txt").write_text("some data")
    (top / "here" / "old").mkdir()
    for name in ("beside", "outside", "tmp"):
        (top / name).mkdir()
    (top / "beside" / "x.txt").write_text("beside")
    before = snapshot(top / "here")
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setattr(tempfile, "tempdir", str(top / "tmp"))
        seen = verified(script, str(top / "outside"), wanted={"float64": True}, quiet=False)
    assert seen.code == 0, seen.data
    assert snapshot(top / "here") == before, "the user's folder is as it was"
    return Seen(seen.code, seen.data, out.getvalue(), err.getvalue()), top


def test_a_right_script_is_equal(right):
    seen, top = right
    assert seen.data["verdict"] == "equal"
    assert not seen.data["cause"]
    counts = seen.counts
    assert counts["steps"]["compared"] == counts["loss"]["compared"] == 2 * 5
    assert counts["parameter"]["compared"] == counts["gradient"]["compared"] == 2 * 20
    assert counts["generator"]["compared"] == 2 * 15
    assert counts["file"]["compared"] >= 2  # none of those that it only reads
    assert all(count["worst"] < 1e-4 for count in counts.values())
    assert "one process" in seen.data["seconds"]
    assert (top / "outside" / "model.pt").exists(), "outside of the folder it writes for real"
    assert not list((top / "tmp").iterdir()), "private copies are left behind"


def test_in_float64_no_rounding_is_left(right):
    counts = right[0].data["float64"]["compared"]
    assert counts["loss"]["compared"] == 2 * 5
    assert counts["file"]["worst"] < 1e-12
    assert 0 < counts["gradient"]["worst"] < 1e-12


def test_what_it_shows(right):
    seen, _ = right
    assert seen.out.startswith("[autoddp] equal: 2 ranks give the numbers of one process; the")
    assert "losses" in seen.out
    first, *runs = seen.err.splitlines()
    assert first == (
        "[autoddp] each run has a copy of this folder; what the script writes elsewhere, it "
        "writes for real"
    )
    assert runs[0].startswith("[autoddp] one process: ")
    assert len(runs) >= 4


@pytest.mark.parametrize("wrong", ["", "* (1 + 0.01 * __import__('autoddp').world_size())"])
def test_bars_and_clocks_are_no_difference_and_hide_none(wrong, tmp_path):
    script = tmp_path / "here" / "bars.py"
    script.parent.mkdir()
    script.write_text(textwrap.dedent(BARS).format(wrong=wrong))
    seen = verified(script)
    assert seen.code == bool(wrong), seen.data
    assert "one process again" in seen.data["seconds"]
    places = {(found["aspect"], found["place"]) for found in seen.differences}
    if wrong:
        assert ("file", "end.pt['loss']") in places
        assert len([place for aspect, place in places if aspect == "print"]) == 2, "the last lines"
        assert seen.data["float64"]["differences"]


CANCELS = """
    class Large(nn.Module):
        def forward(self, h): return h + (1e6 * (h - h.mean(0)).mean(0)).detach()
"""


def test_float32_that_differs_is_compared_in_float64_by_itself(tmp_path):
    """Numbers that cancel are off by rounding, by more than is allowed."""
    parts = {"net": "nn.Sequential(nn.Linear(6, 3), Large())", "before": CANCELS}
    parts["data"] = "TensorDataset(torch.load('x.pt'), x[:, :3].argmax(1))"
    script = written(tmp_path / "here" / "cancels.py", **parts)
    torch.save(torch.randn(40, 6), tmp_path / "here" / "x.pt")
    seen = verified(script)
    assert "2 ranks in float64" in seen.data["seconds"]
    assert seen.differences
    assert seen.code == 0, seen.data
    assert "in float64" in seen.data["why"]


def test_rows_that_are_mixed_are_told_from_rounding(tmp_path):
    """The first divergence has its step, its line and its parameters."""
    script = written(
        tmp_path / "here" / "marked.py",
        before=WRONG_MARK,
        net="nn.Sequential(nn.Linear(6, 8), Centred(), nn.Linear(8, 3))",
        optimizer="torch.optim.SGD(net.parameters(), lr=0.3)",
        inside="print('at', time.time_ns())",
    )
    seen = verified(script)
    assert seen.code == 1
    assert seen.differences[0] | {"step": 1, "aspect": "loss"} == seen.differences[0]
    assert "marked.py:" in seen.differences[0]["line"]
    assert "marks with autoddp.rowwise" in seen.data["cause"]
    differ = {(d["step"], d["aspect"], d["place"].partition(",")[0]) for d in seen.differences}
    assert (1, "gradient", "Sequential.0.weight") in differ
    assert (1, "parameter", "Sequential.0.weight") in differ
    assert not any("'at " in d["want"] for d in seen.differences), "the clock's reading"
    assert {d["rank"] for d in seen.differences} == {0, 1}
    assert seen.data["float64"]["differences"]


def test_a_decision_of_one_rank_of_three_is_found(tmp_path):
    script = written(tmp_path / "here" / "decides.py", inside=DECIDES)
    seen = verified(script, wanted={"steps": 4}, nproc=3)
    assert seen.code == 1
    assert seen.counts["steps"]["compared"] == 3 * 4
    assert "do not agree with each other, first at step 3, decides.py:" in seen.data["cause"]
    assert "learning rate of group 0 on rank 2: 0.02 instead" in seen.data["cause"]


def test_a_seed_that_is_another_each_time_is_found(tmp_path):
    script = written(
        tmp_path / "here" / "seeds.py", before="import os; torch.manual_seed(os.getpid())"
    )
    seen = verified(script, wanted={"steps": 1})
    assert seen.code == 1
    assert "two runs of one process differ, too" in seen.data["cause"]


def test_a_script_that_fails_could_not_run(tmp_path):
    seen = verified(written(tmp_path / "here" / "fails.py", inside="raise ValueError('no luck')"))
    assert seen.code == 2
    assert seen.data["error"][-1] == "ValueError: no luck"
    assert list(seen.data["seconds"]) == ["one process"]


def test_ranks_that_fail_differ(tmp_path):
    fails = "import autoddp; assert autoddp.world_size() == 1, 'no ranks please'"
    seen = verified(written(tmp_path / "here" / "fails.py", inside=fails))
    assert seen.code == 1
    assert "the ranks end with exit code 1" in seen.data["cause"]
    assert seen.data["error"][-1] == "AssertionError: no ranks please"
    assert any("fails.py" in line for line in seen.data["error"])


def test_several_optimizers_closures_and_steps_that_are_skipped(tmp_path):
    script = tmp_path / "here" / "many.py"
    script.parent.mkdir()
    script.write_text(textwrap.dedent(MANY))
    seen = verified(script)
    assert seen.code == 0, seen.data
    assert seen.counts["steps"]["compared"] == 2 * 5  # two of SGD, three of LBFGS
    assert seen.counts["loss"]["compared"] > 2 * 6


def test_a_script_without_an_optimizer(tmp_path):
    script = tmp_path / "here" / "by_hand.py"
    script.parent.mkdir()
    script.write_text(textwrap.dedent(BY_HAND))
    seen = verified(script)
    assert seen.code == 0, seen.data
    assert seen.counts["loss"]["compared"] == 2 * 2
    assert seen.counts["print"]["compared"] == 2
    assert any("no optimizer step was seen" in note for note in seen.data["notes"])


def test_a_module_is_compared(tmp_path):
    (tmp_path / "here" / "pkg").mkdir(parents=True)
    script = written(tmp_path / "here" / "pkg" / "train.py", before="open('new', 'w').close()")
    seen = verified(script, wanted={"steps": 1}, module=True)
    assert seen.code == 0, seen.data
    assert seen.counts["steps"]["compared"] == 2
    assert seen.counts["file"]["compared"] == 1
    assert os.listdir(tmp_path / "here") == ["pkg"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-n", "1"], "--nproc is 1"),
        (["--steps", "0"], "--steps is 0"),
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
    # numpy pads the numbers of an array to one width
    assert line_off("[-0.5   1.25  ]", "[-0.5 1.250001]", 1e-5) <= 1e-5


def test_what_one_process_does_not_repeat_is_not_compared():
    want, again, ranks = (
        f"100%|##| 8/8 [{rate}, loss=0.5]"
        for rate in ("00:00<00:00, 25.16it/s", "08:20<00:00, 9s/it", "00:03<00:00, 1.10s/it")
    )
    known = want, again
    assert line_off(want, ranks, 1e-9, known=known) == 0
    assert line_off(want, ranks.replace("0.5", "0.6"), 1e-9, known=known) > 0.1
    assert line_off(want, ranks.replace("8/8", "7/8"), 1e-9, known=known) > 0.1
    # in float64 one process has another loss, which is compared, too
    wide = [line.replace("0.5", loss) for line, loss in ((want, "0.4"), (ranks, "0.7"))]
    assert line_off(*wide, 1e-9, known=known) > 0.1
    of, on = "pid 17 of host", "pid 19 on host"
    assert line_off(of, on, 1e-9, known=(of, "pid 18 of host")) == OTHER


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("0%\r50%\r100%\nend", ["100%", "end"]),
        ("long text\rshort", ["shorttext"]),
        ("[===>   ] 1/2\b\b\b2/2\n", ["[===>   ] 2/2"]),
        ("a\n\rb 10%\x1b[A\rc\n\n", ["c", "b 10%"]),
        ("a 5\x1b[2K\r\x1b[32mb\x1b[0m", ["b"]),
    ],
)
def test_what_a_terminal_shows_in_the_end(text, lines):
    assert shown(text) == lines


def entry(step: int, **numbers: dict[str, list[float]]) -> dict:
    """What a rank records of a step."""
    aspects = ("loss", "learning rate", "generator", "gradient", "parameter")
    at = {"step": step, "line": "train.py:3", "lines": {"1": "train.py:2"}, "dtypes": ["float64"]}
    return at | {aspect: numbers.get(aspect, {}) for aspect in aspects}


def compared(want: list[dict], *ranks: list[dict]) -> Findings:
    """Compare steps of ranks with those of one process."""
    one = Recording("one", 0, 0.0, {}, {0: want})
    return compare_runs(one, Recording("ranks", 0, 0.0, {}, dict(enumerate(ranks))))


def test_every_rank_is_compared_with_one_process():
    steps = [[entry(n, loss={"1": [x]}) for n in (1, 2)] for x in (0.5, 0.7)]
    found = compared(steps[0], steps[0], [steps[0][0], steps[1][1]])
    assert [d.what for d in found.differences] == ["loss 1 on rank 1"]
    lines = Conclusion("train.py", 2, DIFFERENT, "2 ranks differ", found).lines()
    assert lines[0] == "[autoddp] different: 2 ranks differ"
    lines = [" ".join(line.split()) for line in lines]
    assert lines[2] == "first divergence, step 2 one process 2 ranks off by"
    assert lines[3] == "train.py:2 loss 1 on rank 1 0.5 0.7 2.9e-01"
    assert "losses 4 1 2.9e-01" in lines
    (found,) = compared(steps[0], steps[0], steps[0][:1]).differences
    assert found.described() == "step 2, train.py:3: steps on rank 1: 1 instead of 2"


def test_a_number_that_is_too_large_or_missing_hides_no_other():
    same = [entry(1, gradient={"Net.weight": [1e200] * 3})]
    assert compared(same, same).equal
    gradients = {"Net.weight": [math.inf, math.inf, math.nan], "Net.bias": [1.0] * 3}
    (found,) = compared(
        [entry(1, gradient=gradients)], [entry(1, gradient=gradients | {"Net.bias": [2.0] * 3})]
    ).differences
    assert found.what == "gradient Net.bias, norm"
    (found,) = compared([entry(1, parameter=gradients)], [entry(1)]).differences[:1]
    assert found.got == "nothing"


@pytest.mark.parametrize(
    ("found", "repeated"),
    [
        (Difference("generator", "torch", "one state", "another", OTHER, 1, "train.py:3"), False),
        (Difference("loss", "", "0.5", "0.7", 0.3, 500, "train.py:9"), True),  # chaos
    ],
    ids=lambda value: f"{value.aspect}-{value.size}" if isinstance(value, Difference) else "",
)
def test_one_process_that_differs_from_itself_from_the_start_does_not_repeat(found, repeated):
    control = Findings()
    control.take(found, 0)
    cause = unrepeated(control)
    assert (not cause) == repeated
    assert not cause or "seed all generators" in cause


def test_ctrl_c_on_a_terminal_ends_all(tmp_path):
    there = tmp_path / "there"
    script = written(tmp_path / "here" / "stopped.py", inside=WAITS)
    there.write_text("before")
    (tmp_path / "tmp").mkdir()
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(script.parent)
        words = [sys.executable, "-m", "autoddp", "verify", script.name, str(there)]
        os.execve(
            sys.executable, words, environ({"TMPDIR": str(tmp_path / "tmp"), "TERM": "xterm"})
        )
    seen = bytearray()
    reading = threading.Thread(target=read_all, args=(terminal, seen))
    reading.start()
    deadline = time.monotonic() + 200
    while there.read_text() != "after":
        assert time.monotonic() < deadline, bytes(seen)
        time.sleep(0.02)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGINT
    assert not leftover(pid)
    reading.join()
    os.close(terminal)
    assert b"[autoddp] one process: " in seen, "the progress"
    assert not list((tmp_path / "tmp").iterdir())


def read_all(terminal: int, shown: bytearray) -> None:
    """Until the last who has it open closes it."""
    with contextlib.suppress(OSError):
        while got := os.read(terminal, 4096):
            shown += got


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


def folders_of(top: Path, names: tuple[str, ...] = ("one", "two")) -> tuple[Path, ...]:
    """Make empty folders, of runs that wrote nothing yet."""
    for name in names:
        (top / name).mkdir()
    return tuple(top / name for name in names)


def test_files_whose_names_one_process_does_not_repeat_are_all_compared(tmp_path):
    runs = folders_of(tmp_path, ("one", "again", "ranks"))
    for hour, (run, loss) in enumerate(zip(runs, (0.6, 0.6, 0.8), strict=True)):
        for second in (0, 1):
            made = run / f"runs-0{hour}-0{second}"
            made.mkdir()
            (made / "log.txt").write_text(f"loss {loss + second}\n")
            os.utime(made / "log.txt", (second, second))
    one, again = (Recording("", 0, 0.0, {}, folder=run) for run in runs[:2])
    findings = Findings()
    compare_files(findings, (runs[0], runs[2]), 1e-9, again=Again(one, again))
    assert [(d.place, d.want, d.got) for d in findings.differences] == [
        ("runs-#-#/log.txt line 1", "'loss 0.6'", "'loss 0.8'"),
        ("runs-#-#/log.txt (2) line 1", "'loss 1.6'", "'loss 1.8'"),
    ]


class Unloadable:
    """An object that is pickled, but raises when it is loaded."""

    def __reduce__(self):
        return operator.getitem, ({}, "no key")


def test_files_that_cannot_be_loaded_differ_by_their_bytes(tmp_path):
    folders = folders_of(tmp_path)
    for number, folder in enumerate(folders):
        torch.save({"it": Unloadable(), "number": number}, folder / "it")
    findings = Findings()
    compare_files(findings, folders, 1e-9)
    assert [(d.aspect, d.place, d.got) for d in findings.differences] == [
        ("file", "it", "other bytes")
    ]
    assert findings.compared["file"].compared == 1
