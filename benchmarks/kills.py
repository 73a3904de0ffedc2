"""Kill -9 one process of a whole job at a random moment: who goes on, and what is left behind?

    python -m benchmarks.kills [--kills 100] [--nproc 2] [--seed 0]

Each job is `autoddp run` on a script that trains for ever; the launcher, or one of the ranks, is
killed by turns, some time after the first step. Exit code 0: all other processes of each job ended
within --limit seconds, and /dev/shm is as it was.
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
from pathlib import Path

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


def kill_one(script: Path, mark: str, args: argparse.Namespace) -> tuple[str, float, list[int]]:
    """Start a job and kill one of its processes.

    Returns:
        Whom it was; the seconds until the others had ended; those that had not.
    """
    command = [sys.executable, "-m", "autoddp", "run", "-q", "-n", str(args.nproc), str(script)]
    job = subprocess.Popen(
        command, env=environ({MARK: mark}), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert job.stdout is not None
    job.stdout.readline()
    until = time.monotonic() + random.uniform(0, 1)
    for _ in job.stdout:  # a pipe that nobody reads would stop the script
        if time.monotonic() > until:
            break
    there = started(mark)
    victim = there[int(mark) % min(len(there), 1 + args.nproc)]
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    while (left := started(mark)) and time.monotonic() - began < args.limit:
        job.poll()
        time.sleep(0.05)
    took = time.monotonic() - began
    for number in left:
        os.kill(number, signal.SIGKILL)
    job.wait()
    return "launcher" if victim == job.pid else "rank", took, left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    shared, seconds, survivors = set(os.listdir("/dev/shm")), [], 0
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        for number in range(args.kills):
            whom, took, left = kill_one(script, str(number), args)
            seconds.append(took)
            survivors += len(left)
            print(f"{number + 1:4d}  {whom:8s}  {took:5.1f} s  {len(left)} left", flush=True)
    kept = set(os.listdir("/dev/shm")) - shared
    print(
        f"{args.kills} kills: others ended after {statistics.median(seconds):.1f} s, at most "
        f"{max(seconds):.1f} s; {survivors} processes left; {len(kept)} entries left in /dev/shm"
    )
    return int(bool(survivors or kept))


if __name__ == "__main__":
    sys.exit(main())
