"""Microseconds of an all-reduce: by gloo alone, and by the memory that ranks of a node share.

    python -m benchmarks.all_reduce [--ranks 2] [--nodes 1] [--rounds 3]

Both in the same ranks, one thread each, in turn; medians over calls, and over rounds. Several nodes
are sets of so many ranks each on this machine, between which only gloo goes.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from tests.support.ranks import run_ranks

COUNTS = (1, 1_000, 25_000, 100_000, 1_000_000, 4_000_000)  # of float32


def both(group, rounds):
    """Medians of a round by count: (gloo, memory)."""
    found = []
    for _ in range(rounds):
        row = {}
        for count in COUNTS:
            x = torch.rand(count)
            ways = (
                lambda y: group.start_all_reduce(y).wait(),
                lambda y: group.memory.all_reduce(y),
            )
            row[count] = [median(way, x, 300 if count < 200_000 else 40) for way in ways]
        found.append(row)
    return found


def median(act, x, calls):
    """The median microseconds of `act` on a fresh copy of `x`."""
    times = []
    for _ in range(calls):
        y = x.clone()
        began = time.perf_counter()
        act(y)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    nodes = [node for node in range(args.nodes) for _ in range(args.ranks)]
    given = {"nodes": tuple(nodes)} if args.nodes > 1 else {}
    found = run_ranks(both, len(nodes), args.rounds, timeout=600, **given)[0]
    title = f"floats, {args.nodes} x {args.ranks} ranks"
    print(f"| {title} | gloo | shared memory | ratio |\n|---|---|---|---|")
    for count in COUNTS:
        gloo, memory = (statistics.median(row[count][way] for row in found) for way in (0, 1))
        ratio = statistics.median(row[count][0] / row[count][1] for row in found)
        print(f"| {count:,} | {gloo:.0f} | {memory:.0f} | {ratio:.1f} |")


if __name__ == "__main__":
    main()
