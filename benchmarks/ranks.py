"""Microseconds that a call between ranks and a small all-reduce cost, on many ranks and nodes.

    python -m benchmarks.ranks [--ranks 2 16 64 256] [--nodes 1 4 16] [--calls 4000]

The ranks are processes that have the lines of a job and nothing else; a node is a network namespace
(more than one need the right to make them). Of each act: the time that it takes, by the slowest
rank, and how long it keeps rank 0's processor busy. On few cores the first is little more than the
work of all ranks together; the second is what grows with the ranks wherever the job runs.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from autoddp.comm.control_plane import Channel
from autoddp.comm.rpc import Rpc
from autoddp.comm.tensor_bytes import reducing
from autoddp.comm.timeout import Timeout
from autoddp.comm.world import World

CLONE_NEWNET = 0x40000000
SECONDS = 300.0
SMALL = bytes(64)


class LightRank(Rpc):
    """A rank without tensors, features and a script."""

    def __init__(self, world: World, store: str) -> None:
        files = dist.FileStore(store)
        channel = Channel.between(world, files, Timeout(SECONDS))
        super().__init__(world.rank, world.world_size, files, channel)
        self.merge = reducing(torch.float64, dist.ReduceOp.SUM)

    def ask(self) -> None:
        self.call("ask", lambda: 1)

    def meet(self) -> None:
        self.call("meet", lambda: 1, all_here=True)

    def last(self) -> None:
        self.call("last", lambda: 1, by=self.size - 1)

    def reduce(self) -> None:
        self.collective_check.exchange("0 sum", SMALL, self.merge)


ACTS: dict[str, Callable[[LightRank], None]] = {
    "rank 0 acts": LightRank.ask,
    "all meet, rank 0 acts": LightRank.meet,
    "the last rank acts": LightRank.last,
    "all-reduce of 64 bytes": LightRank.reduce,
}


def measured(rank: LightRank, times: int) -> list[tuple[float, float]]:
    """Of each act: microseconds in all, and of this rank's processor."""
    found = []
    for act in ACTS.values():
        rank.reduce()
        began, busy = time.perf_counter(), time.process_time()
        for _ in range(times):
            act(rank)
        rank.reduce()
        took, used = time.perf_counter() - began, time.process_time() - busy
        found.append((took / times * 1e6, used / times * 1e6))
    return found


def be(world: World, space: str, store: str, times: int, pipe: int) -> None:
    """Be a rank in a namespace, and tell what was measured."""
    code = 1
    try:
        if space:
            with open(f"/run/netns/{space}") as there:
                assert ctypes.CDLL(None).setns(there.fileno(), CLONE_NEWNET) == 0
        torch.set_num_threads(1)
        rank = LightRank(world, store)
        os.write(pipe, json.dumps([world.rank, measured(rank, times)]).encode() + b"\n")
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


@contextmanager
def namespaces(count: int) -> Iterator[list[tuple[str, str]]]:
    """Make nodes that a bridge connects; yield name and address of each."""
    if count == 1:
        yield [("", "127.0.0.1")]
        return
    names = [f"adranks{node}" for node in range(count)]
    lines = ["ip link add adranks type bridge", "ip link set adranks up"]
    for node, name in enumerate(names):
        lines += [
            f"ip netns add {name}",
            f"ip link add adr{node} type veth peer name adr{node}n",
            f"ip link set adr{node} master adranks up",
            f"ip link set adr{node}n netns {name}",
            f"ip -n {name} addr add 10.213.79.{node + 1}/24 dev adr{node}n",
            f"ip -n {name} link set adr{node}n up",
            f"ip -n {name} link set lo up",
        ]
    try:
        for line in lines:
            subprocess.run(line.split(), check=True)
        yield [(name, f"10.213.79.{node + 1}") for node, name in enumerate(names)]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)
        subprocess.run(["ip", "link", "del", "adranks"], check=False)


def run(ranks: int, spaces: list[tuple[str, str]], times: int) -> list[tuple[float, float]]:
    """Of each act: the slowest rank's microseconds, and those of rank 0's processor."""
    each, (reader, writer) = ranks // len(spaces), os.pipe()
    folder = tempfile.TemporaryDirectory()
    gc.freeze()  # else what is there is copied, page by page, when a rank looks for garbage
    children = []
    for rank in range(ranks):
        node, local = divmod(rank, each)
        child = os.fork()
        if child == 0:
            os.close(reader)
            world = World(rank, ranks, local, each, node, spaces[0][1])
            be(world, spaces[node][0], f"{folder.name}/store", times, writer)
        children.append(child)
    os.close(writer)
    with os.fdopen(reader) as told:
        found = dict(json.loads(line) for line in told)
    codes = [os.waitpid(child, 0)[1] for child in children]
    folder.cleanup()
    assert not any(codes), f"ranks failed: {codes}"
    return [(max(found[rank][at][0] for rank in found), found[0][at][1]) for at in range(len(ACTS))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 16, 64, 256])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--calls", type=int, default=4000, help="of two ranks; of more, fewer")
    args = parser.parse_args()
    print(f"{'us (of rank 0)':18}" + "".join(f"{name:>24}" for name in ACTS))
    for nodes in args.nodes:
        with namespaces(nodes) as spaces:
            for ranks in args.ranks:
                if ranks < nodes or ranks % nodes:
                    continue
                found = run(ranks, spaces, max(20, args.calls * 2 // ranks))
                words = "".join(f"{took:13.0f} ({busy:7.0f})" for took, busy in found)
                print(f"{ranks:4} ranks {nodes:2} nodes {words}")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
