"""What runs the scripts of `tests/libraries` sees what differs; its table is whole."""

import importlib.util
import json
import random
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch

from autoddp.tools.verify.findings import Findings
from tests.libraries.cases import HERE, SCRIPTS, Case, cases
from tests.libraries.compare import Run, compare, lines, same, same_files
from tests.libraries.page import PAGE
from tests.support.cli import ROOT

TRAINS = """
import json, sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1).double()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = torch.utils.data.DataLoader(torch.randn(14, 3, dtype=torch.float64), 4, shuffle=True)
for x in loader:
    loss = model(x).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(loss.item())
torch.save(model.state_dict(), "model.pt")
on_ranks = "autoddp" in sys.modules
"""


def row(folder, script="", options=(), **more):
    (folder / "tiny.py").write_text(TRAINS + script)
    case = Case("tiny", "torch", "a line", folder=folder, **more)
    return compare(case, folder / "runs", options)


@pytest.mark.slow
def test_a_script_that_is_the_same_on_ranks_passes(tmp_path):
    found = row(tmp_path, options=("--placement", "sharded"), runs=2)
    assert found.wrong == ""
    assert found.largest < 1e-12
    assert found.shared == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        ("", ["--disable", "gradients"], r"print stdout line 2: .* \(off by"),
        ("on_ranks or open('kept.txt', 'w')", [], "file work/kept.txt: missing instead of there"),
        ("sys.exit(on_ranks)", [], r"exit codes \(1,\) instead of \(0,\)"),
        ("print('a warning', on_ranks, file=sys.stderr)", [], "print stderr line 1: "),
    ],
    ids=["gradients", "a missing file", "exit code", "stderr"],
)
def test_what_differs_is_said(script, options, said, tmp_path):
    assert re.match(said, row(tmp_path, script, options).wrong)


def test_a_library_that_is_missing_is_skipped(tmp_path):
    found = compare(Case("tiny", "no-such-library", "nothing"), tmp_path)
    assert (found.ran, found.wrong) == (False, "no-such-library is not installed")


def write_json(path, x):
    path.write_text(json.dumps({"loss": x, "time": "2026-01-01 10:00:00"}))


def write_safetensors(path, x):
    from safetensors.torch import save_file

    save_file({"weight": torch.tensor([1.0, x], dtype=torch.float64)}, path)


def write_events(path, x):
    from torch.utils.tensorboard import SummaryWriter

    path.parent.joinpath("logs").mkdir()
    with SummaryWriter(path.parent / "logs") as writer:
        writer.add_scalar("loss", x, 1)
        writer.add_scalar("samples_per_second", 100 * x, 1)


def write_archive(path, x):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("log.json", (2026, 1, 1, 1, int(4 * x), 0)), f"[{x!r}]")


def write_shard(path, x):
    torch.save({"x": x}, path.with_suffix(".pth"))
    with tarfile.open(path, "w") as archive:
        archive.add(path.with_suffix(".pth"), "model.pth")
    path.with_suffix(".pth").unlink()


@pytest.mark.parametrize(
    ("name", "write", "rtol"),
    [
        ("log.json", write_json, 1e-9),
        ("model.safetensors", write_safetensors, 1e-9),
        ("model.pt", lambda path, x: torch.save({"x": x}, path), 1e-9),
        ("events", write_events, 1e-4),
        ("saved.zip", write_archive, 1e-9),
        ("shard.tar", write_shard, 1e-9),
    ],
)
def test_files_are_compared_by_their_numbers(name, write, rtol, tmp_path):
    worst = []
    for x in (0.5, 0.5 + 0.4 * rtol, 0.5 + 4 * rtol):
        folder = tmp_path / str(x)
        folder.mkdir()
        write(folder / name, x)
        findings = Findings()
        case = Case("tiny", "torch", "a line", rtol=rtol)
        same_files(findings, case, tmp_path / "0.5", folder)
        worst.append((findings.equal, findings.largest))
    assert [equal for equal, _ in worst] == [True, True, False]
    assert worst[0][1] == 0 < worst[1][1] < worst[2][1]


def test_what_outlives_the_command_is_said(tmp_path):
    want, got = (Run((0,), "", "", tmp_path, left, 0.0) for left in ((), ("7 (python)",)))
    with pytest.raises(AssertionError, match="outlived the command"):
        same(Findings(), Case("tiny", "torch", "a line"), want, got)


def test_what_a_clock_says_is_no_difference():
    case = Case("tiny", "torch", "a line", unlike={"made by .*": "the host"})
    texts = (
        "{'loss': 0.5, 'eval_runtime': 0.01}\n 50%|███ | 1/2\n45% right\n[autoddp] x\n"
        "made by a\n10:20:30 on",
        "{'loss': 0.5, 'eval_runtime': 2.5}\n45% right\nmade by b\n"
        "Matplotlib is building the font cache; this\n10:20:31 on",
    )
    a, b = (lines(text, case) for text in texts)
    assert a == b == ["{'loss': 0.5, 'eval_runtime': #}", "45% right", "# on"]
    draw = random.Random(0)
    numbers = [f"loss {draw.gauss(0, 2)!r}, {draw.expovariate(1e3):.8f}" for _ in range(10_000)]
    assert lines("\n".join(numbers), case) == numbers


def test_every_script_is_in_the_table():
    found = cases()
    assert sorted(found) == sorted(path.stem for path in SCRIPTS.glob("*.py"))
    run = [case for case in found.values() if case.run]
    assert sum(case.ranks == 3 for case in run) >= len(run) // 3
    loose = [case.name for case in found.values() if case.rtol > 1e-9 and not case.reason]
    assert loose == []


def test_no_script_hides_a_module_that_another_imports():
    """Their folder comes first on the path of each."""
    hidden = [name for name in cases() if importlib.util.find_spec(name)]
    assert hidden == []


def test_scripts_are_as_short_as_a_first_page():
    long = {path.name: count for path in SCRIPTS.glob("*.py") if (count := code(path)) > 56}
    assert long == {}


def code(path: Path) -> int:
    return sum(bool(line.strip()) for line in path.read_text().splitlines())


def test_the_versions_are_those_of_the_extra():
    project = tomllib.loads((Path(ROOT) / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["libraries"]
    pins = (HERE / "constraints.txt").read_text().splitlines()
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+( ; .*)?", pin)] == []
    pinned = {plain(pin.partition("==")[0]) for pin in pins}
    assert {plain(re.split(r"[\[<>=]", name)[0]) for name in extra} <= pinned
    assert {plain(case.package) for case in cases().values() if case.run} <= pinned
    assert [name for name in pinned if name.startswith(("nvidia-", "cuda-", "triton"))] == []


def plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def test_the_page_has_all_of_the_table():
    shown = [line.split(" | ")[2] for line in PAGE.read_text().splitlines() if line[:2] == "| "]
    assert shown[1:] == [case.trains for case in cases().values()]
