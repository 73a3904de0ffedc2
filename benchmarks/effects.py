"""Microseconds that a touch of the outside world takes on ranks, and their ratio to plain Python.

    python -m benchmarks.effects [--ranks 2 3] [--rounds 5] [--nodes]

The same lines run plainly and on several ranks with all features of the outside world in force,
alternating; each figure is the slowest rank's, the median over rounds. With --nodes the ranks are
in two network namespaces (needs the right to make them), so that what one says to the other goes by
TCP.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch.distributed as dist

from autoddp.comm.group import Group
from autoddp.comm.world import World
from autoddp.effects.clocks import Clocks
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.signals import Signals
from autoddp.effects.temporary import Temporary
from tests.effects.outward import installed
from tests.support.ranks import run_ranks

ADDRESSES = ("10.213.78.1", "10.213.78.2")
PORT = 29612
CLOCK = time.perf_counter  # before it is patched


def clock(folder: str, times: int) -> None:
    for _ in range(times):
        time.perf_counter()


def exists(folder: str, times: int) -> None:
    path = os.path.join(folder, "there")
    for _ in range(times):
        os.path.exists(path)


def small_file(folder: str, times: int) -> None:
    path = os.path.join(folder, "there")
    for _ in range(times):
        with open(path, "w") as file:
            file.write("1 2 3\n")


def append(folder: str, times: int) -> None:
    with open(os.path.join(folder, "log"), "w") as file:
        for _ in range(times):
            file.write("1 2 3\n")


def makedirs(folder: str, times: int) -> None:
    path = os.path.join(folder, "a", "b")
    for _ in range(times):
        os.makedirs(path, exist_ok=True)


EFFECTS: dict[str, tuple[Callable[[str, int], None], int]] = {
    "a clock read": (clock, 500),
    "os.path.exists": (exists, 300),
    "open, write a line, close": (small_file, 60),
    "write a line to an open file": (append, 3000),
    "os.makedirs(exist_ok=True)": (makedirs, 100),
}


def timed(act: Callable[[str, int], None], folder: str, times: int) -> float:
    began = CLOCK()
    act(folder, times)
    return (CLOCK() - began) / times * 1e6


def rank(group: Group, folder: str, rounds: int) -> list[tuple[float, float]]:
    """Of each effect: microseconds plainly, and with all ranks together."""
    found = []
    for act, times in EFFECTS.values():
        plainly, together = [], []
        for _ in range(rounds):
            group.barrier()
            if group.rank == 0:
                plainly.append(timed(act, folder, times))
            group.barrier()
            with installed(group, Clocks, Signals, Files, Folders, Temporary):
                act(folder, 3)
                group.barrier()
                together.append(timed(act, folder, times))
        found.append((statistics.median(plainly or [0.0]), statistics.median(together)))
    return found


def show(title: str, ranks: list[list[tuple[float, float]]]) -> None:
    print(f"\n{title:32}{'plain us':>10}{'us':>10}{'ratio':>8}")
    for at, name in enumerate(EFFECTS):
        plainly, together = ranks[0][at][0], max(found[at][1] for found in ranks)
        print(f"{name:32}{plainly:10.2f}{together:10.2f}{together / plainly:8.1f}")


def on_a_node(node: int, folder: str, rounds: int) -> None:
    """One of two ranks, each on a node of its own."""
    os.environ["GLOO_SOCKET_IFNAME"] = f"adb{node}"
    store = dist.TCPStore(ADDRESSES[0], PORT, 2, node == 0, wait_for_workers=False)
    group = Group.over(World(node, 2, 0, 1, node, ADDRESSES[0], PORT), store)
    found = rank(group, folder, rounds)
    if node == 0:
        theirs = group.call("theirs", lambda: None, by=1)
        show("2 ranks on 2 nodes", [found, [tuple(pair) for pair in theirs]])
    else:
        group.call("theirs", lambda: found, by=1)
    group.barrier()
    os._exit(sys.stdout.flush() or 0)


def on_two_nodes(rounds: int) -> None:
    names = [f"adbench{node}" for node in range(2)]
    lines = ["ip link add adb0 type veth peer name adb1"]
    for node, name in enumerate(names):
        lines += [
            f"ip netns add {name}",
            f"ip link set adb{node} netns {name}",
            f"ip -n {name} addr add {ADDRESSES[node]}/24 dev adb{node}",
            f"ip -n {name} link set adb{node} up",
            f"ip -n {name} link set lo up",
        ]
    with tempfile.TemporaryDirectory() as folder:
        try:
            for line in lines:
                subprocess.run(line.split(), check=True)
            ranks = [
                subprocess.Popen(
                    f"ip netns exec {name} {sys.executable} -m benchmarks.effects "
                    f"--rounds {rounds} --node {node} {folder}".split()
                )
                for node, name in enumerate(names)
            ]
            for one in ranks:
                one.wait(120)
        finally:
            for name in names:
                subprocess.run(["ip", "netns", "del", name], check=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", action="store_true")
    parser.add_argument("--node", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.node:
        on_a_node(int(args.node[0]), args.node[1], args.rounds)
    for size in args.ranks:
        with tempfile.TemporaryDirectory() as folder:
            show(f"{size} ranks on a node", run_ranks(rank, size, folder, args.rounds))
    if args.nodes:
        on_two_nodes(args.rounds)


if __name__ == "__main__":
    main()
