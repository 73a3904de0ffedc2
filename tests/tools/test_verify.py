"""`autoddp verify` accepts a correct script, and finds step, number and cause of a wrong one."""

from __future__ import annotations

import contextlib
import io
import json
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
from autoddp.tools.verify import command
from autoddp.tools.verify.load import load_checkpoint
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
    """The content of a folder."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in folder.rglob("*")
    }


@dataclass(frozen=True)
class Seen:
    """The results of verify."""

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
    """Run `autoddp verify` on a script in its folder."""
    found = script.parent.parent / f"{script.stem}.json"
    with contextlib.chdir(script.parent):
        what, chosen = Script(script.name, args), Options(**STRICTLY | options)
        code = command.run(what, chosen, command.VerifyOptions(json=str(found), **wanted or {}))
    return Seen(code, json.loads(found.read_text()))


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """A correct script that writes in its folder and outside, verified with all options."""
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


def test_float64_leaves_no_float32_rounding(right):
    counts = right[0].data["float64"]["compared"]
    assert counts["loss"]["compared"] == 2 * 5
    assert counts["file"]["worst"] < 1e-12
    assert 0 < counts["gradient"]["worst"] < 1e-12


def test_the_printed_verdict(right):
    seen, _ = right
    assert seen.out.startswith("[autoddp] equal: 2 ranks give the numbers of one process; the")
    assert "losses" in seen.out
    first, *runs = seen.err.splitlines()
    assert first == (
        "[autoddp] each run has a copy of this folder; files that the script writes elsewhere "
        "are real"
    )
    assert runs[0].startswith("[autoddp] one process: ")
    assert len(runs) >= 4


@pytest.mark.parametrize("wrong", ["", "* (1 + 0.01 * __import__('autoddp').world_size())"])
def test_bars_and_clocks_neither_cause_nor_hide_differences(wrong, tmp_path):
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


def test_different_float32_numbers_are_compared_in_float64(tmp_path):
    """Numbers that cancel differ by more than the tolerance."""
    parts = {"net": "nn.Sequential(nn.Linear(6, 3), Large())", "before": CANCELS}
    parts["data"] = "TensorDataset(torch.load('x.pt'), x[:, :3].argmax(1))"
    script = written(tmp_path / "here" / "cancels.py", **parts)
    torch.save(torch.randn(40, 6), tmp_path / "here" / "x.pt")
    seen = verified(script)
    assert "2 ranks in float64" in seen.data["seconds"]
    assert seen.differences
    assert seen.code == 0, seen.data
    assert "in float64" in seen.data["why"]


AMPLIFIES = """
    import os
    import autoddp
    torch.manual_seed(0)
"""


@pytest.mark.parametrize("fault", ["", "loss *= 1 + 1e-3 * (autoddp.world_size() - 1)"])
def test_amplified_rounding_is_told_from_a_fault(fault, tmp_path):
    """A bias before a BatchNorm has no gradient but rounding, of which Adam makes whole steps."""
    script = written(
        tmp_path / "here" / "amplifies.py",
        before=AMPLIFIES,
        net="nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))",
        optimizer="torch.optim.Adam(net.parameters(), lr=0.05, eps=1e-20)",
        after="torch.save(net.state_dict(), f'net_{os.getpid()}.pt')",
    )
    if fault:
        text = script.read_text()
        script.write_text(text.replace("loss.backward()", f"{fault}; loss.backward()"))
    seen = verified(script, nproc=3)
    assert "one process, gradients off by a last bit" in seen.data["seconds"]
    assert not any(each["want"] == "missing" for each in seen.data["float64"]["differences"])
    assert (seen.code, seen.data["amplified"]) == (bool(fault), not fault), seen.data
    assert fault or "but for rounding, which this training amplifies" in seen.data["why"]


def test_mixed_rows_are_not_mistaken_for_rounding(tmp_path):
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
    assert "or autoddp.rowwise" in seen.data["cause"]
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
    assert seen.counts["steps"]["compared"] == 3 * 3  # ranks end before the fourth step
    assert "do not agree with each other, first at step 3, decides.py:" in seen.data["cause"]
    assert "learning rate of group 0 on rank 2: 0.02 instead" in seen.data["cause"]


def test_a_seed_that_changes_in_each_run_is_found(tmp_path):
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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--steps", "0"], "--steps is 0"),
        (["--json", "no/where.json"], "the folder no does not exist"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(options, says, tmp_path, monkeypatch):
    from autoddp import cli

    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=says):
        cli.parse(["verify", *options, "train.py"])()


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
    """Read until the last writer closes it."""
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
