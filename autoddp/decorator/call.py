"""A call of a decorated function as a job: on rank 0, and on its forks."""

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

Note = Callable[[int], None]  # takes RETURNED or RAISED


@dataclass(frozen=True)
class DecoratedCall:
    """The call of a decorated function or of a notebook's cell, and the options of its job."""

    wrapped: Callable[..., Any]
    args: Any
    kwargs: Any
    options: Options

    @property
    def site(self) -> str:
        """Return the name of the function or of the cell, as the user knows it."""
        name: str = getattr(self.wrapped, "__qualname__", type(self.wrapped).__name__)
        return name if name.startswith(CELL) else f"{name}()"


class ClosedGroup:
    """The stand-in for a process group that is gone: a sharded batch has lost its other rows."""

    def __getattr__(self, name: str) -> Any:
        raise AutoDDPError(
            "a sharded batch is read after the job that it belongs to; return it from the "
            "decorated function, or read it inside"
        )


def lead(call: DecoratedCall, ranks: int) -> Any:
    """Run the call as rank 0, with the other ranks as forks, and return the result of the call.

    They are forked for each call, so that they have all that rank 0 has then.

    Raises:
        BadInput: The options cannot be met, or this process cannot be rank 0 of a job.
    """
    if dist.is_initialized():
        raise BadInput(
            "@distributed makes its own process group, but the script has initialised one already; "
            "leave that out, or run the whole script by autoddp run"
        )
    launch.check(call.options)
    devices, logs = joining.find_devices(), Logs(call.options.log_dir)
    forkable.check(call.site, ranks, call.options)
    logs.make()
    with listen() as door, closing(Forks(call.site, ranks, logs)) as others:
        rank = others.start()
        if rank:
            world = place(rank, ranks, door.getsockname()[1])
            door.close()
            follow(call, world, devices, others)
        # only now: its thread looks up an address, with locks that a fork would find held
        server = torch_internals.store_behind(door)
        return take_part(call, place(0, ranks, server.port), devices, others.conclude)


def place(rank: int, ranks: int, port: int) -> World:
    """Return the place of a rank of this node's only job."""
    return World(rank, ranks, rank, ranks, 0, HOST, port, agent_store=True)


def follow(call: DecoratedCall, world: World, devices: Devices, others: Forks) -> NoReturn:
    """Run the call as a rank above 0, and end with it: rank 0 alone runs what comes after."""

    def note(state: int) -> None:
        if state == RAISED:
            traceback.print_exc()  # to the log
        others.note(world.rank, state)

    try:
        notebook.to_log(others.logs.of(world.rank))
        take_part(call, world, devices, note)
    except BaseException:
        if others.states[world.rank] == RUNNING:
            note(RAISED)
    finally:
        forks.end()


def take_part(call: DecoratedCall, world: World, devices: Devices, note: Note) -> Any:
    """Call the function as a rank, and note at the end whether it has returned or raised."""
    with joined(call.options, world, devices) as run:
        try:
            result = whole(call.wrapped(*call.args, **call.kwargs))
            run.group.conclude()
        except BaseException as error:
            strip(error)
            note(RAISED)
            raise
        note(RETURNED)
    return result


@contextmanager
def joined(options: Options, world: World, devices: Devices) -> Iterator[Run]:
    """Make this process a rank inside the context, and put it back as it was afterwards."""
    given = (*ADDED, variable(devices.kind, os.environ), "NCCL_SOCKET_IFNAME")
    threads, environ = torch.get_num_threads(), {name: os.environ.get(name) for name in given}
    report = Report(world.rank == 0 and not options.quiet, options.strict)
    run = None
    try:
        worker.set_up(world)
        joining.take_device(world, devices)
        with member(world, options, devices, report, None) as mine:
            run = mine.run
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
    """Leave the job, so that no process group and no reducer on the parameters is left."""
    gc.collect()
    group.leave()
    pg, group.pg = group.pg, cast("dist.ProcessGroup", ClosedGroup())
    group.collective_check = cast(CollectiveCheck, ClosedGroup())
    dist.destroy_process_group(pg)
