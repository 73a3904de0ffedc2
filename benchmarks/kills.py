"""Kill -9 one process of a whole job at a random moment: who goes on, and what is left behind?

    python -m benchmarks.kills [--kills 100] [--nproc 2] [--seed 0] [--saving]

Each job is `autoddp run` on a script that trains for ever; the launcher, or one of the ranks, is
killed by turns, some time after the first step. With --saving the script replaces a checkpoint at
each step. Exit code 0: all other processes of each job ended within --limit seconds, /dev/shm is as
it was, and the checkpoint is that of the last step that was printed, or of the one after it.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.support.cli import environ

MARK = "AUTODDP_KILLS_OF"  # in the environment of all that a job starts
SCRIPT = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        print("step", flush=True)
"""
PRINTS = SCRIPT.splitlines(keepends=True)[-1]
CHECKPOINT, DRAFTS = "last.pt", ".last.pt.*"
SAVES = """        done = globals().get("done", 0) + 1
        torch.save({"step": done, "numbers": torch.full((1 << 20,), done)}, "last.pt")
        print(done, flush=True)
"""


def started(mark: str) -> list[int]:
    """The processes of a job, the launcher first."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            there = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if there and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended
    return sorted(found)


@dataclass
class Killed:
    """What a killed process left behind."""

    whom: str
    seconds: float  # until the others had ended
    left: list[int]  # processes that had not
    saving: bool  # whether a draft of the checkpoint was on the disk when it was killed
    lost: bool  # whether the checkpoint is not that of a finished step
    drafts: int  # that the launcher, if it lives, has not removed


def kill_one(script: Path, mark: str, options: argparse.Namespace) -> Killed:
    """Start a job in a new folder and kill one of its processes."""
    folder = script.with_name(mark)
    folder.mkdir()
    command = [sys.executable, "-m", "autoddp", "run", "-q", "-n", str(options.nproc), str(script)]
    job = subprocess.Popen(
        command,
        cwd=folder,
        env=environ({MARK: mark}),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert job.stdout is not None
    printed = [job.stdout.readline()]
    until = time.monotonic() + random.uniform(0, 1)
    for line in job.stdout:  # a pipe that nobody reads would stop the script
        printed.append(line)
        if time.monotonic() > until:
            break
    there = started(mark)
    victim = there[int(mark) % min(len(there), 1 + options.nproc)]
    if options.saving:
        await_draft(folder)
    time.sleep(random.uniform(0, 0.02))  # else most are killed soon after a step, or a save, began
    saving = any(folder.glob(DRAFTS))
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    while (left := started(mark)) and time.monotonic() - began < options.limit:
        job.poll()
        time.sleep(0.05)
    took = time.monotonic() - began
    for number in left:
        os.kill(number, signal.SIGKILL)
    printed += job.stdout
    job.wait()
    whom = "launcher" if victim == job.pid else "rank"
    steps = [line for line in printed if line.endswith(b"\n")]
    lost = options.saving and is_lost(folder / CHECKPOINT, steps)
    drafts = len([*folder.glob(DRAFTS)]) if whom == "rank" else 0
    return Killed(whom, took, left, saving, lost, drafts)


def await_draft(folder: Path) -> None:
    """Wait, up to 10 s, until a save has begun."""
    until = time.monotonic() + 10
    while not any(folder.glob(DRAFTS)) and time.monotonic() < until:
        pass


def is_lost(checkpoint: Path, printed: list[bytes]) -> bool:
    """Return whether a checkpoint is not that of the last step printed, or of the one after it."""
    try:
        kept = torch.load(checkpoint)
    except Exception as error:
        print(f"{checkpoint}: {error!r}", flush=True)
        return True
    done, numbers = int(printed[-1]), kept["numbers"]
    return kept["step"] not in (done, done + 1) or not bool((numbers == kept["step"]).all())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--saving", action="store_true", help="replace a checkpoint at each step")
    options = parser.parse_args()
    random.seed(options.seed)
    shared, kills = set(os.listdir("/dev/shm")), list[Killed]()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT.replace(PRINTS, SAVES) if options.saving else SCRIPT)
        for count in range(options.kills):
            one = kill_one(script, str(count), options)
            kills.append(one)
            during = ", during a save" * one.saving + ", LOST" * one.lost
            print(
                f"{count + 1:4d}  {one.whom:8s}  {one.seconds:5.1f} s  {len(one.left)} left"
                f"{during}{f', {one.drafts} drafts left' if one.drafts else ''}",
                flush=True,
            )
    kept = set(os.listdir("/dev/shm")) - shared
    seconds = [one.seconds for one in kills]
    left, lost = sum(len(one.left) for one in kills), sum(one.lost for one in kills)
    drafts = sum(one.drafts for one in kills)
    print(
        f"{options.kills} kills: others ended after {statistics.median(seconds):.1f} s, at most "
        f"{max(seconds):.1f} s; {left} processes left; {len(kept)} entries left in /dev/shm"
    )
    if options.saving:
        during = sum(one.saving for one in kills)
        print(f"{during} during a save: {lost} checkpoints lost, {drafts} drafts left")
    return int(bool(left or kept or lost or drafts))


if __name__ == "__main__":
    sys.exit(main())
