"""A call of a decorated function as a job, on rank 0 and on its forks."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist

from autoddp import launch, torch_internals
from autoddp.comm.collective_check import CollectiveCheck
from autoddp.comm.group import Group
from autoddp.comm.place import HERE
from autoddp.comm.world import ADDED, World
from autoddp.decorator import forkable, forks, notebook
from autoddp.decorator.forks import RAISED, RETURNED, RUNNING, Forks
from autoddp.decorator.wholes import whole
from autoddp.effects.run import Run
from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch.rendezvous import HOST, listen
from autoddp.options import Options
from autoddp.process import joining, worker
from autoddp.process.devices import Devices, variable
from autoddp.process.script import strip
from autoddp.process.session import member
from autoddp.process.streams import Logs
from autoddp.report import Report
from autoddp.report.places import CELL

SetState = Callable[[int], None]  # takes RETURNED or RAISED


@dataclass(frozen=True)
class DecoratedCall:
    """A call of a decorated function or of a notebook's cell, and the options of its job."""

    wrapped: Callable[..., Any]
    args: Any
    kwargs: Any
    options: Options

    @property
    def site(self) -> str:
        """Return the name of the function or of the cell for messages."""
        name: str = getattr(self.wrapped, "__qualname__", type(self.wrapped).__name__)
        return name if name.startswith(CELL) else f"{name}()"


class ClosedGroup:
    """A replacement for a destroyed process group, which raises an error at any use."""

    def __getattr__(self, name: str) -> Any:
        raise AutoDDPError(
            "a sharded batch is read after the end of its job; return it from the decorated "
            "function, or read it inside"
        )


def run_rank0(call: DecoratedCall, ranks: int) -> Any:
    """Run the call as rank 0, with the other ranks as forks, and return its result.

    Ranks are forked for each call, so that they have the state that rank 0 has then.

    Raises:
        BadInput: The options cannot be used here, or this process cannot be forked.
    """
    refuse_group()
    launch.check(call.options)
    devices, logs = joining.find_devices(), Logs(call.options.log_dir)
    forkable.check(call.site, ranks, call.options)
    logs.make()
    with listen() as listener, closing(Forks(call.site, ranks, logs)) as forked:
        rank = forked.start()
        if rank:
            world = world_of(rank, ranks, listener.getsockname()[1])
            listener.close()
            run_fork(call, world, devices, forked)
        # after the forks, as its thread resolves an address under locks that a fork would inherit
        server = torch_internals.store_behind(listener)
        return run_on_rank(call, world_of(0, ranks, server.port), devices, forked.conclude)


def refuse_group() -> None:
    """Refuse a call in a script that has a process group of its own.

    Raises:
        BadInput: It has one.
    """
    if dist.is_initialized():
        raise BadInput(
            "@distributed makes its own process group, but the script has initialised one already; "
            "remove that, or run the whole script with autoddp run"
        )


def world_of(rank: int, ranks: int, port: int) -> World:
    """Return the `World` of a rank of a job on this node."""
    return World(rank, ranks, rank, ranks, 0, HOST, port, agent_store=True)


def run_fork(call: DecoratedCall, world: World, devices: Devices, forked: Forks) -> NoReturn:
    """Run the call as a rank above 0, and end this process, as only rank 0 continues."""

    def set_state(state: int) -> None:
        if state == RAISED:
            traceback.print_exc()  # to the log
        forked.set_state(world.rank, state)

    try:
        notebook.to_log(forked.logs.of(world.rank))
        run_on_rank(call, world, devices, set_state)
    except BaseException:
        if forked.states[world.rank] == RUNNING:
            set_state(RAISED)
    finally:
        forks.end()


def run_on_rank(call: DecoratedCall, world: World, devices: Devices, set_state: SetState) -> Any:
    """Call the function as a rank, and set the state at the end: returned or raised."""
    with joined(call.options, world, devices) as run:
        try:
            result = whole(call.wrapped(*call.args, **call.kwargs))
            run.group.conclude()
        except BaseException as error:
            strip(error)
            set_state(RAISED)
            raise
        set_state(RETURNED)
    return result


@contextmanager
def joined(options: Options, world: World, devices: Devices) -> Iterator[Run]:
    """Make this process a rank inside the context, and restore its state afterwards."""
    names = (*ADDED, variable(devices.kind, os.environ), "NCCL_SOCKET_IFNAME")
    threads, environ = torch.get_num_threads(), {name: os.environ.get(name) for name in names}
    report = Report(world.rank == 0 and not options.quiet, options.strict)
    run = None
    try:
        worker.set_up(world)
        joining.take_device(world, devices)
        with member(world, options, devices, report, None) as run:
            yield run
            run.view.pending.reduce()
    finally:
        HERE.world = None
        if run is not None:
            leave(run.group)
        torch.set_num_threads(threads)
        for name, value in environ.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def leave(group: Group) -> None:
    """Leave the job, and destroy its process group and the reducers of parameters."""
    gc.collect()
    group.leave()
    pg, group.pg = group.pg, cast("dist.ProcessGroup", ClosedGroup())
    group.collective_check = cast(CollectiveCheck, ClosedGroup())
    group.disconnect()
    dist.destroy_process_group(pg)
