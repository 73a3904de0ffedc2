"""`autoddp run --record` writes what each rank computed, however the ranks were started."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from autoddp.tools.record.recording import read
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
FILES = ["0.jsonl", "1.jsonl", "recording.json", "report.json"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", sys.executable]


def written(folder: Path, inside: str = "pass", name: str = "train.py") -> str:
    """The script, with something done before each step."""
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
    """One process, two ranks of ours, and two of torchrun's."""
    folder = tmp_path_factory.mktemp("recordings")
    script = written(folder)
    assert recorded(folder, "one", "-n", "1") == ["0.jsonl", "recording.json"]
    assert recorded(folder, "two", "-n", "2") == FILES
    command = ["-m", "autoddp", "run", "--record", "torchrun", script, "argument"]
    done = run_python(*TORCHRUN, *command, cwd=folder, timeout=240)
    assert done.rc == 0, done.err
    assert sorted(path.name for path in (folder / "torchrun").iterdir()) == FILES
    return folder


def test_a_recording_tells_what_ran_and_how(three):
    one, two, torchrun = (
        json.loads((three / name / "recording.json").read_text())
        for name in ("one", "two", "torchrun")
    )
    assert [about["ranks"] for about in (one, two, torchrun)] == [1, 2, 2]
    assert [about["arguments"] for about in (one, two, torchrun)] == [[], [], ["argument"]]
    assert [about["options"]["nproc"] for about in (one, two, torchrun)] == [1, 2, None]
    for about in (one, two, torchrun):
        assert about["script"] == "train.py"
        assert (about["exit"], about["nodes"]) == (0, 1)
        assert about["seconds"] > 0


def test_every_rank_writes_a_line_a_step_with_numbers_and_times(three):
    for name, ranks in (("one", 1), ("two", 2), ("torchrun", 2)):
        found = read(str(three / name))
        assert list(found.steps) == list(range(ranks))
        for steps in found.steps.values():
            assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
            assert all(len(step["gradients"]) == len(step["parameters"]) == 4 for step in steps)
            assert all(step["times"]["rows"] == 8 for step in steps)
            assert all(step["times"]["seconds"] > 0 for step in steps)
            assert len([loss for step in steps for _, loss in step["losses"]]) == 5


def test_a_recording_that_is_there_is_left_as_it_is(three):
    before = {path.name: path.read_bytes() for path in (three / "two").iterdir()}
    done = fork_cli("run", "-n", "1", "--record", "two", "train.py", cwd=three)
    assert done.rc == 2
    assert done.err == (
        "[autoddp] --record is two, which holds a recording already; give another folder, "
        "or remove it\n"
    )
    assert done.out == ""
    command = ["-m", "autoddp", "run", "--record", "two", "train.py"]
    done = run_python(*TORCHRUN, *command, cwd=three, timeout=240)
    assert done.rc
    assert "--record is two, which holds a recording already" in done.err
    assert {path.name: path.read_bytes() for path in (three / "two").iterdir()} == before


def test_one_process_is_plain_python_but_for_the_recorder(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import builtins, os, torch, torch.utils.data as data\n"
        "from autoddp.patching import Installation\n"
        "print(open is builtins.open, type(os.open), type(torch.save), 'RANK' in os.environ)\n"
    )
    done = fork_cli("run", "-n", "1", "--record", "one", script, cwd=tmp_path)
    plain = run_python(script, cwd=tmp_path)
    assert (done.rc, done.out, plain.rc) == (0, plain.out, 0), done.err
    assert read(str(tmp_path / "one")).steps == {0: []}


@pytest.mark.parametrize(
    ("kind", "there", "not_there"),
    [("numbers", "gradients", "times"), ("times", "times", "gradients")],
)
def test_one_kind_is_recorded_without_the_other(kind, there, not_there, tmp_path):
    written(tmp_path)
    recorded(tmp_path, "it", "-n", "2", "--record-kind", kind)
    for steps in read(str(tmp_path / "it")).steps.values():
        assert all(there in step and not_there not in step for step in steps)


def test_how_a_script_ends_is_recorded(tmp_path):
    written(tmp_path, "if step == 2: raise ValueError('of the script')")
    done = fork_cli("run", "-n", "2", "--record", "raised", "train.py", cwd=tmp_path)
    assert done.rc == 1
    found = read(str(tmp_path / "raised"))
    assert (found.code, len(found.steps[0]), found.raised) == (1, 2, True)
    assert found.ends[0]["raised"] == "ValueError: of the script"
    written(tmp_path, "if step == 2: import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    done = fork_cli("run", "-n", "1", "--record", "killed", "train.py", cwd=tmp_path)
    assert done.rc == -signal.SIGKILL
    found = read(str(tmp_path / "killed"))
    assert (found.code, len(found.steps[0]), found.ends[0]) == (None, 2, {})


def test_a_job_that_is_run_again_is_recorded_again(tmp_path):
    fails = (
        "if step == 2 and not __import__('os').path.exists('again'):\n"
        "        open('again', 'w').close(); sys.exit(3)"
    )
    written(tmp_path, fails)
    assert recorded(tmp_path, "it", "-n", "2", "--max-restarts", "1") == FILES
    found = read(str(tmp_path / "it"))
    assert found.code == 0
    assert [[step["step"] for step in found.steps[rank]] for rank in (0, 1)] == [
        [1, 2, 3, 4, 5]
    ] * 2


OWN = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Linear(3, 1)
net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    net(torch.rand(4, 3)).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_ranks_of_a_script_that_is_distributed_by_itself_are_recorded(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    recorded(tmp_path, "it", "-n", "2", script="own.py")
    found = read(str(tmp_path / "it"))
    assert [len(found.steps[rank]) for rank in (0, 1)] == [3, 3]
    assert found.about["ranks"] == 2
    losses = [found.steps[rank][0]["losses"][0][1] for rank in (0, 1)]
    assert losses[0] != losses[1], "each draws for itself, as without a recorder"


def test_what_cannot_be_recorded_is_one_line(tmp_path):
    (tmp_path / "starts.py").write_text(
        "import torch.multiprocessing as mp, torch.distributed as dist\n"
        "def main(rank): dist.init_process_group('gloo', rank=rank, world_size=2)\n"
        "if __name__ == '__main__': mp.spawn(main, nprocs=2)\n"
    )
    done = fork_cli("run", "--record", "it", "starts.py", cwd=tmp_path)
    assert done.rc == 2
    assert "--record is it, but starts.py starts its ranks itself" in done.err
    written(tmp_path)
    (tmp_path / "file").touch()
    done = fork_cli("run", "--record", "file/it", "train.py", cwd=tmp_path)
    assert done.rc == 2
    assert done.err.startswith("[autoddp] --record is file/it, which cannot be written to (")
    assert len(done.err.splitlines()) == 1


# ---- recordings that are compared, and summarised


def compared(folder: Path, *args: str) -> tuple[int, dict, str]:
    """The exit code of `autoddp verify --recordings`, and what it found."""
    found = folder / "found.json"
    found.unlink(missing_ok=True)
    done = fork_cli("verify", "--json", found, "--recordings", *args, cwd=folder)
    assert "Traceback" not in done.err
    return done.rc, json.loads(found.read_text()) if found.exists() else {}, done.out + done.err


@pytest.mark.parametrize("other", ["two", "torchrun"])
def test_ranks_have_the_numbers_of_one_process_however_they_were_started(three, other):
    code, found, said = compared(three, "one", other)
    assert code == 0, said
    assert said.startswith(f"[autoddp] equal: {other} has the numbers of one; the largest")
    counts = found["compared"]
    assert counts["loss"]["compared"] == 5
    assert counts["gradient"]["compared"] == counts["parameter"]["compared"] == 20
    assert counts["generator"]["compared"] == 15
    assert all(count["worst"] < 1e-12 for count in counts.values())
    assert found["among ranks"]["compared"]["steps"]["compared"] == 5
    assert ("one is of train.py, torchrun of train.py argument" in said) == (other == "torchrun")


def test_a_rank_that_decides_differently_is_named(three, tmp_path):
    written(tmp_path, "optimizer.param_groups[0]['lr'] *= 1 + (autoddp.rank() == 1)")
    done = fork_cli("run", "-n", "2", "--record", "it", "train.py", cwd=tmp_path)
    code, found, said = compared(tmp_path, str(three / "one"), "it")
    assert done.rc == code == 1
    assert found["cause"]["name"] == "a decision of each rank"
    assert "learning rate of group 0 on rank 1, against rank 0: 0.02" in said
    assert "first at step 1, train.py:" in said
    assert found["among ranks"]["differences"][0]["aspect"] == "learning rate"
    code, found, said = compared(tmp_path, "it", str(three / "two"))
    assert code == 1, "it is the first whose ranks part"
    assert found["among ranks"]["differences"]


def test_another_number_is_a_difference_with_its_step(three, tmp_path):
    written(tmp_path, "optimizer.param_groups[0]['lr'] *= 1 + (step == 2)")
    recorded(tmp_path, "it", "-n", "2")
    code, found, said = compared(tmp_path, str(three / "one"), "it")
    assert code == 1
    assert (found["first"][0]["step"], found["first"][0]["aspect"]) == (3, "learning rate")
    assert f"[autoddp] different: it has not the numbers of {three / 'one'}" in said
    assert found["cause"]["name"] == "unknown"


def test_only_the_first_steps_are_compared(three, tmp_path):
    written(tmp_path, "if step == 2: raise ValueError('of the script')")
    fork_cli("run", "-n", "2", "--record", "it", "train.py", cwd=tmp_path)
    code, found, said = compared(tmp_path, str(three / "one"), "it")
    assert (code, found["cause"]["name"]) == (1, "an error")
    assert "the ranks end in an error: ValueError: of the script" in said
    done = fork_cli("verify", "--steps", "2", "--recordings", three / "one", "it", cwd=tmp_path)
    assert done.rc == 0, done.out


def test_a_recording_without_the_files_of_another_node_says_so(three, tmp_path):
    for name in ("0.jsonl", "recording.json"):
        (tmp_path / name).write_bytes((three / "two" / name).read_bytes())
    code, _, said = compared(three, "one", str(tmp_path))
    assert code == 0
    assert f"{tmp_path} has 1 of 2 ranks: 1 wrote on other nodes; copy their files" in said


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
        assert len(row["rounds"][0]["memory"]) == row["ranks"]
    assert rows[0]["speed-up"] == 1
    assert "how fast" in done.out
    assert "[autoddp] fingerprints of numbers were taken, too" in done.out
    done = fork_cli("bench", "--recordings", "two", "one", cwd=three)
    assert "speed-up is against two, which is not of one process" in done.out


WRONG = {
    ("verify", "--recordings"): "no recordings given; say which: autoddp verify [OPTIONS] --recor",
    ("bench", "--recordings"): "no recordings given; say which: autoddp bench [OPTIONS] --record",
    ("verify", "--recordings", "one"): "--recordings is given 1 folders; it compares 2",
    ("verify", "--recordings", "one", "none"): "none holds no recording (no recording.json and no",
    ("verify", "--recordings", "one", "times"): "times holds times alone; record it without",
    (
        "verify",
        "-n",
        "3",
        "--recordings",
        "one",
        "two",
    ): "--nproc is given with --recordings, where",
    (
        "verify",
        "--loading",
        "each",
        "--recordings",
        "one",
        "two",
    ): "--loading is given with --recor",
    ("bench", "--recordings", "one", "none"): "none holds no recording",
    ("bench", "--recordings", "numbers"): "numbers holds 0 steps with times (it was recorded with",
    ("bench", "--steps", "3", "--recordings", "one"): "--steps is given with --recordings, where",
}


@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_what_cannot_be_compared_is_one_line(args, three):
    for kind in ("numbers", "times"):
        if kind in args and not (three / kind).exists():
            recorded(three, kind, "-n", "1", "--record-kind", kind)
    done = fork_cli(*args, cwd=three)
    assert done.rc == 2
    assert done.err.startswith(f"[autoddp] {WRONG[args]}")
    assert len(done.err.splitlines()) == 1
    assert not done.out
