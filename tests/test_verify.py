"""`autoddp verify` finds a right script right, and of a wrong one the step, the number and the cause."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from autoddp import verify
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.script import Script
from autoddp.verifying.causes import Case, repeats
from autoddp.verifying.findings import OTHER, Difference, Findings
from autoddp.verifying.outputs import line_off
from autoddp.verifying.steps import allowed
from autoddp.verifying.strangers import load_checkpoint
from tests.cli import environ, run_cli

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
    print(open("data.txt").read(), os.getcwd())
"""
AUGMENTED = """
    class Noisy(torch.utils.data.Dataset):
        def __len__(self): return 40
        def __getitem__(self, i): return x[i] + 0.1 * torch.randn(6), x[i, :3].argmax()
"""
CENTERED = """
    class Centered(nn.Module):
        def forward(self, x): return x - x.mean(0)
"""
STOPPED = """
    print("after", end="", file=open(sys.argv[1], "w"), flush=True)
    time.sleep(60)
"""
# a bug in our own proof: whatever it tries, it finds to be right
PLANTED = """
    import wrapt

    @wrapt.when_imported("autoddp.view.proof")
    def plant(proof):
        proof._close = proof._same_row = lambda *args: True
"""


def written(path: Path, **parts: str) -> Path:
    """A script in `path`'s folder, made of parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    filled = {k: textwrap.indent(textwrap.dedent(v), "        ").strip() for k, v in (PLAIN | parts).items()}
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
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@dataclass(frozen=True)
class Seen:
    """What verify found."""

    code: int
    data: dict
    out: str = ""
    err: str = ""


def verified(script: Path, *args: str, wanted: dict | None = None, **options: object) -> Seen:
    """Called in this process, which has torch already."""
    found = script.parent.parent / f"{script.stem}.json"
    before = os.getcwd()
    os.chdir(script.parent)
    try:
        chosen = Options(nproc=2, quiet=True, **{"loading": "whole", "draws": "whole"} | options)
        code = verify.run(Script(script.name, args), chosen, verify.Wanted(json=str(found), **wanted or {}))
    finally:
        os.chdir(before)
    return Seen(code, json.loads(found.read_text()))


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """A right script, by the command line, that writes in its folder and outside."""
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
    done = run_cli(
        *("verify", "--float64", "--json", top / "found.json", "--plot", top / "losses.png"),
        *(script, outside),
        cwd=script.parent,
        env={"TMPDIR": str(top / "tmp")},
        timeout=200,
    )
    after = snapshot(top / "here"), snapshot(outside)
    assert done.rc == 0, done.out + done.err
    data = json.loads((top / "found.json").read_text())
    return Seen(done.rc, data, done.out, done.err), before, after, top


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
    assert 0 < counts["gradient"]["largest relative difference"] < 1e-12
    assert any(note.startswith("float64: ") for note in seen.data["notes"])


def test_what_it_shows(right):
    seen, *_ = right
    assert "losses" in seen.out
    assert "[autoddp] equal: in float64 no number is off by more than" in seen.out
    assert seen.err == ""


def test_the_users_files_are_as_before(right):
    _, before, after, top = right
    assert before == after
    assert not list((top / "tmp").iterdir()), "private copies are left behind"


def test_the_plot_is_a_picture(right):
    *_, top = right
    assert (top / "losses.png").read_bytes().startswith(b"\x89PNG")


def test_augmentation_is_named(tmp_path):
    script = written(tmp_path / "here" / "noisy.py", after="pass", data="Noisy()", before=AUGMENTED)
    seen = verified(script, loading="rows")
    assert seen.code == 1
    assert seen.data["cause"]["name"] == "augmentation"
    assert seen.data["cause"]["mend"] == "--loading whole"
    assert "noisy.py:" in seen.data["cause"]["what"]
    assert seen.data["first"][0]["step"] == 1


def test_a_bug_of_ours_is_found(tmp_path, monkeypatch):
    script = written(
        tmp_path / "here" / "center.py",
        before=CENTERED,
        net="nn.Sequential(nn.Linear(6, 8), Centered(), nn.Linear(8, 3))",
        optimizer="torch.optim.SGD(net.parameters(), lr=0.3)",
        inside="print('at', time.time() % 1)",
    )
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(textwrap.dedent(PLANTED))
    with monkeypatch.context() as context:
        context.setenv("PYTHONPATH", str(tmp_path / "path"))
        seen = verified(script)
    assert seen.code == 1
    assert seen.data["cause"]["name"] == "modules"
    assert "Sequential at center.py:" in seen.data["cause"]["what"]
    assert "--disable modules" in seen.data["cause"]["mend"]
    differ = {(d["step"], d["aspect"], d["place"]) for d in seen.data["differences"]}
    assert (1, "gradient", "Sequential.0.weight") in differ
    assert (1, "parameter", "Sequential.0.weight") in differ
    assert any("'at " in d["want"] for d in seen.data["excused"]), "the clock's reading"
    assert not seen.data["among ranks"]["differences"]


def test_a_decision_of_each_rank_is_found(tmp_path):
    decides = """
    import autoddp
    if autoddp.rank() == 1 and step == 2: optimizer.param_groups[0]["lr"] *= 2
    """
    seen = verified(written(tmp_path / "here" / "decides.py", inside=decides), wanted={"steps": 4})
    assert seen.code == 1
    assert seen.data["compared"]["steps"]["compared"] == 4
    assert any("--steps 4" in note for note in seen.data["notes"])
    assert seen.data["cause"]["name"] == "a decision of each rank"
    assert "step 3, decides.py:" in seen.data["cause"]["what"]
    assert (
        "learning rate of group 0 on rank 1, against rank 0: 0.02 instead of 0.01"
        in seen.data["cause"]["what"]
    )


def test_a_script_that_fails_could_not_run(tmp_path):
    seen = verified(written(tmp_path / "here" / "fails.py", inside="raise ValueError('no luck')"))
    assert seen.code == 2
    assert seen.data["error"][-1] == "ValueError: no luck"
    assert list(seen.data["seconds"]) == ["one process"]


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
    assert line_off("loss 0.5012", "loss 0.5013", 1e-9) <= 1e-9  # the last digit, rounded the other way
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
    causes = list(repeats(Case(Findings(), Findings(), control, None, Options(), None)))
    assert (not causes) == repeated
    assert repeated or "seed all generators" in causes[0].mend


def test_a_run_that_is_stopped_puts_everything_back(tmp_path):
    there = tmp_path / "there"
    script = written(tmp_path / "here" / "stopped.py", inside=STOPPED)
    there.write_text("before")
    (tmp_path / "tmp").mkdir()
    verifying = subprocess.Popen(
        [sys.executable, "-m", "autoddp", "verify", script.name, there],
        cwd=script.parent,
        env=environ({"TMPDIR": str(tmp_path / "tmp")}),
    )
    deadline = time.monotonic() + 60
    while there.read_text() != "after":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    verifying.send_signal(signal.SIGTERM)
    assert verifying.wait(60) == 128 + signal.SIGTERM
    assert there.read_text() == "before"
    assert not list((tmp_path / "tmp").iterdir())


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
