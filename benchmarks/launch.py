"""Seconds from command to end of a job of one all-reduce: `autoddp run` against torchrun.

    python -m benchmarks.launch [RANKS [ROUNDS]]

The two take turns, so that both meet the machine in the same moods; the median counts.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.cli import environ

JOB = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(x)
assert x[0] == sum(range(1, dist.get_world_size() + 1)), x
dist.destroy_process_group()
"""


def seconds(command: list[str]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environ(), timeout=120)
    return time.perf_counter() - start


def compare(ranks: int, rounds: int) -> dict[str, list[float]]:
    """The times of each launcher."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.py")
        job.write_text(JOB)
        plain = Path(folder, "plain.py")  # our own group is joined, with one all-reduce
        plain.write_text("import torch\n")
        commands = {
            "torchrun": ["torch.distributed.run", "--nproc-per-node", str(ranks), str(job)],
            "autoddp, the same job": ["autoddp", "run", "-q", "-n", str(ranks), str(job)],
            "autoddp, a session": ["autoddp", "run", "-q", "-n", str(ranks), str(plain)],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                times[name].append(seconds([sys.executable, "-m", *command]))
    return times


def main() -> None:
    """Print the medians and the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", nargs="?", type=int, default=2)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    args = parser.parse_args()
    times = compare(args.ranks, args.rounds)
    base = statistics.median(times["torchrun"])
    for name, values in times.items():
        median = statistics.median(values)
        print(
            f"{name:24} {median:.2f} s  ratio {median / base:.2f}  {[round(v, 2) for v in values]}"
        )


if __name__ == "__main__":
    main()
