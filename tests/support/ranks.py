"""Real gloo ranks for a test: `run_ranks(fn, nproc)` calls `fn(group, *args)` in each, forked."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # by the first optimizer, which would take each rank two seconds
import torch.distributed as dist

from autoddp.comm.group import Group
from autoddp.comm.world import World

torch.set_num_threads(1)  # a forked child cannot use a thread pool that its parent started


def _rank(
    fn: Callable[..., Any],
    rank: int,
    nproc: int,
    path: str,
    args: tuple,
    pipe: Any,
    nodes: tuple[int, ...] = (),
) -> None:
    try:
        torch.set_num_threads(1)
        world = World(rank, nproc, rank, nproc)
        if nodes:
            world = _placed(rank, nodes)
        group = Group.over(world, _store(rank, path))
        answer = ("value", fn(group, *args))
        group.pg.barrier().wait()  # no stamp: a test may have left the ranks at different places
    except BaseException:
        answer = ("error", traceback.format_exc())
    pipe.send(answer)
    pipe.close()
    os._exit(0)


def _placed(rank: int, nodes: tuple[int, ...]) -> World:
    """Ranks of one number are on one node."""
    node = nodes[rank]
    each = nodes.count(node)
    return World(rank, len(nodes), rank - nodes.index(node), each, node, "127.0.0.1")


def _store(rank: int, path: str) -> dist.Store:
    """As a job's: what a file's raises when it waits too long is of another type."""
    meeting = dist.FileStore(path)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        meeting.set("port", str(store.port))
        return store
    return dist.TCPStore("127.0.0.1", int(meeting.get("port")), wait_for_workers=False)


def run_ranks(
    fn: Callable[..., Any],
    nproc: int,
    *args: Any,
    timeout: float = 240,
    nodes: tuple[int, ...] = (),
) -> list[Any]:
    """What `fn(group, *args)` returns on each rank, in order; a rank's traceback is the failure."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "store"))
        pipes, workers = [], []
        gc.freeze()  # else what is there is copied, page by page, when a rank looks for garbage
        for rank in range(nproc):
            mine, theirs = context.Pipe(duplex=False)
            worker = context.Process(
                target=_rank, args=(fn, rank, nproc, path, args, theirs, nodes)
            )
            worker.start()
            theirs.close()
            pipes.append(mine)
            workers.append(worker)
        gc.unfreeze()
        answers: dict[int, Any] = {}
        try:
            while len(answers) < nproc:
                ready = wait([p for r, p in enumerate(pipes) if r not in answers], timeout)
                assert ready, f"ranks {sorted(set(range(nproc)) - set(answers))} hang"
                for pipe in ready:
                    rank = pipes.index(pipe)
                    try:
                        kind, value = pipe.recv()
                    except EOFError:
                        workers[rank].join(5)
                        kind, value = "error", f"died, exit code {workers[rank].exitcode}"
                    assert kind == "value", f"rank {rank} of {nproc}: {value}"
                    answers[rank] = value
        finally:
            for worker in workers:
                if worker.is_alive() and len(answers) < nproc:
                    worker.kill()
                worker.join(10)
    return [answers[rank] for rank in range(nproc)]
