"""`autoddp run --record` records where the time of steps goes, under any launcher."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from autoddp.tools.record.recording import read_whole
from tests.support.cli import fork_cli, run_python

pytestmark = pytest.mark.slow

TRAIN = """
    import sys
    import autoddp, torch, torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    x = torch.randn(40, 6)
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for step, (a, b) in enumerate(DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=8)):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(a), b)
        loss.backward()
        {inside}
        optimizer.step()
        print(step, loss.item())
"""
FILES = ["0.jsonl", "1.jsonl"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", sys.executable]


def written(folder: Path, inside: str = "pass", name: str = "train.py") -> str:
    """The script, with code before each step."""
    text = textwrap.dedent(TRAIN).replace("{inside}", inside)
    (folder / name).write_text(text)
    return name


def recorded(folder: Path, name: str, *options: str, script: str = "train.py") -> list[str]:
    """The files of a recording that `autoddp run` makes, and no others in its folder."""
    done = fork_cli("run", *options, "--record", name, script, cwd=folder)
    assert done.rc == 0, done.err
    return sorted(path.name for path in (folder / name).iterdir())


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Recordings of one process, two ranks, and two ranks of torchrun."""
    folder = tmp_path_factory.mktemp("recordings")
    script = written(folder)
    assert recorded(folder, "one", "-n", "1") == ["0.jsonl"]
    assert recorded(folder, "two", "-n", "2") == FILES
    command = ["-m", "autoddp", "run", "--record", "torchrun", script, "argument"]
    done = run_python(*TORCHRUN, *command, cwd=folder, timeout=240)
    assert done.rc == 0, done.err
    assert sorted(path.name for path in (folder / "torchrun").iterdir()) == FILES
    return folder


def test_a_recording_describes_the_run(three):
    found = [read_whole(str(three / name)) for name in ("one", "two", "torchrun")]
    assert [each.about["ranks"] for each in found] == [1, 2, 2]
    assert [each.about["arguments"] for each in found] == [[], [], ["argument"]]
    for each in found:
        assert (each.about["script"], each.about["view"], each.code) == ("train.py", "global", 0)
        assert list(each.steps) == list(range(each.about["ranks"]))
        for steps in each.steps.values():
            assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
            assert all(step["rows"] == 8 and step["seconds"] > 0 for step in steps)


def test_an_existing_recording_is_not_overwritten(three):
    before = {path.name: path.read_bytes() for path in (three / "two").iterdir()}
    done = fork_cli("run", "-n", "1", "--record", "two", "train.py", cwd=three)
    assert done.rc == 2
    assert done.err == (
        "[autoddp] --record is two, which holds a recording already; give another folder, "
        "or remove it\n"
    )
    assert done.out == ""
    assert {path.name: path.read_bytes() for path in (three / "two").iterdir()} == before


def test_how_a_script_ends_is_recorded(tmp_path):
    written(tmp_path, "if step == 2: raise ValueError('of the script')")
    done = fork_cli("run", "-n", "2", "--record", "raised", "train.py", cwd=tmp_path)
    assert done.rc == 1
    found = read_whole(str(tmp_path / "raised"))
    assert (found.code, len(found.steps[0])) == (1, 2)
    assert found.raised == found.ends[0]["raised"] == "ValueError: of the script"
    written(tmp_path, "if step == 2: import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    done = fork_cli("run", "-n", "1", "--record", "killed", "train.py", cwd=tmp_path)
    assert done.rc == -signal.SIGKILL
    found = read_whole(str(tmp_path / "killed"))
    assert (found.code, len(found.steps[0]), found.ends[0]) == (None, 2, {})


# ---- recordings that are summarised


def test_recordings_are_summarised(three):
    found = three / "speed.json"
    command = ["bench", "--json", found, "--recordings", "one", "two", "torchrun"]
    done = fork_cli(*command, cwd=three)
    assert done.rc == 0, done.err
    rows = json.loads(found.read_text())["rows"]
    assert [(row["row"], row["ranks"]) for row in rows] == [("one", 1), ("two", 2), ("torchrun", 2)]
    for row in rows:
        assert (row["steps"], row["samples"], row["batch"]) == (5, 40, 8)
        assert sum(row["shares"].values()) == pytest.approx(1)
    assert rows[0]["speed-up"] == 1
    assert "how fast" in done.out
    done = fork_cli("bench", "--recordings", "two", "one", cwd=three)
    assert "speed-up is relative to two, which is not a run of one process" in done.out
