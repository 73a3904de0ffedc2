"""A call as the job of processes that torchrun, srun or mpirun has started, each of which makes it.

What the script does before and after the call, each process does as its launcher has it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from autoddp import launch
from autoddp.comm.group import TIMEOUT
from autoddp.comm.place import HERE
from autoddp.comm.world import World, is_launchers
from autoddp.decorator.call import DecoratedCall, refuse_group, run_on_rank
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process import joining, streams
from autoddp.process.streams import Logs


def run(call: DecoratedCall, world: World, environ: Mapping[str, str]) -> Any:
    """Run the call as one rank of the job, and return its result, which all ranks have.

    Args:
        call: The call, which all processes make.
        world: The place of this process.
        environ: The variables that say so, which not each launcher sets by itself.

    Raises:
        BadInput: The options cannot be used here, or contradict what the launcher has started.
    """
    refuse_group()
    launch.check(call.options)
    devices, logs = joining.find_devices(), Logs(call.options.log_dir)
    logs.make()
    try:
        with launchers(environ), output(world, logs):
            return run_on_rank(call, served(world), devices, lambda state: None)
    finally:
        logs.remove()


def check(options: Options, world: World) -> None:
    """Check that the options fit what the launcher has started.

    Raises:
        BadInput: They contradict it.
    """
    nodes = -(-world.world_size // world.local_world_size)
    for name, given, there, what in (
        ("nproc", options.nproc, world.local_world_size, "processes of this script on this node"),
        ("nnodes", options.nnodes if options.nnodes > 1 else None, nodes, "nodes"),
    ):
        if given not in (None, there):
            raise BadInput(
                f"@distributed has {name}={given}, but the launcher started {there} {what}; leave "
                f"{name} out, or start as many"
            )


def served(world: World) -> World:
    """Serve, on rank 0, one store for the calls of this process, if the launcher has none."""
    if not world.agent_store and world.rank == 0 and HERE.store is None:
        where = world.master_addr, world.master_port, world.world_size
        HERE.store = dist.TCPStore(*where, True, TIMEOUT, wait_for_workers=False)
    return replace(world, agent_store=True)


@contextmanager
def launchers(environ: Mapping[str, str]) -> Iterator[None]:
    """Have a launcher's variables inside, which the job hides, and restore this process's after."""
    before = {name: value for name, value in os.environ.items() if is_launchers(name)}
    os.environ.update({name: value for name, value in environ.items() if is_launchers(name)})
    try:
        yield
    finally:
        for name in filter(is_launchers, [*os.environ]):
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def output(world: World, logs: Logs) -> Iterator[None]:
    """Send the output of a rank above 0 to its log inside, and to the terminal again after."""
    if world.rank == 0:
        yield
        return
    kept = [os.dup(number) for number in range(3)]
    buffered = getattr(sys.stdout, "line_buffering", None)
    streams.redirect(logs.of(world.rank))
    try:
        yield
    finally:
        streams.flush()
        for number, own in enumerate(kept):
            os.dup2(own, number)
            os.close(own)
        if buffered is False:
            sys.stdout.reconfigure(line_buffering=False)  # type: ignore[union-attr]
