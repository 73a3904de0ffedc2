"""A call of a decorated function as a job, on rank 0, on the others, and on torchrun's ranks."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import Store

from autoddp import launch, torch_internals
from autoddp.comm import accelerator
from autoddp.comm.collective_check import CollectiveCheck
from autoddp.comm.group import Group
from autoddp.comm.place import HERE
from autoddp.comm.world import ADDED, World, hide
from autoddp.decorator import notebook, start
from autoddp.decorator.agreement import agreed
from autoddp.decorator.existing_group import set_aside
from autoddp.decorator.wholes import whole
from autoddp.decorator.workers import ParentLink, Workers
from autoddp.effects.run import Run
from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch.rendezvous import HOST, listen
from autoddp.options import Options
from autoddp.process import allocator, joining, likeness, report_file, streams, worker
from autoddp.process.devices import Devices, variable
from autoddp.process.script import strip
from autoddp.process.session import session
from autoddp.process.streams import Logs
from autoddp.report import Report
from autoddp.report.places import CELL

Tell = Callable[[str], None]


@dataclass(frozen=True)
class DecoratedCall:
    """The call of a decorated function, and how it shall be run."""

    wrapped: Callable[..., Any]
    args: Any
    kwargs: Any
    options: Options

    @property
    def site(self) -> str:
        """Return the name of the function or of the notebook's cell, as the user knows it."""
        name: str = getattr(self.wrapped, "__qualname__", type(self.wrapped).__name__)
        return name if name.startswith(CELL) else f"{name}()"

    @property
    def variables(self) -> dict[str, Any]:
        """Return the variables of the module that the function is in."""
        found: dict[str, Any] = getattr(self.wrapped, "__globals__", {})
        return found

    def plain(self) -> Any:
        """Call the function as the user did."""
        return self.wrapped(*self.args, **self.kwargs)


class ClosedGroup:
    """The stand-in for a process group that is gone: a batch held by rows has lost other rows."""

    def __getattr__(self, name: str) -> Any:
        raise AutoDDPError(
            "a batch that is held by rows is read after the job that it belongs to; return it from "
            "the decorated function, or read it inside"
        )


def lead(call: DecoratedCall, ranks: int) -> Any:
    """Be rank 0 for the time of the call, with the others as forks, and return the call's result.

    They are forked for each call anew, since a fork has all that rank 0 has.
    """
    with forked(call.site, call.options, ranks):
        return whole(call.plain())


@contextmanager
def forked(site: str, options: Options, ranks: int) -> Iterator[Run]:
    """Be rank 0 inside; the others, forks of this process, run the same and end there."""
    if dist.is_initialized():
        raise BadInput(
            "@distributed makes its own process group, but the script has initialised one already"
        )
    launch.check_places(options)
    launch.check_disabled(options)
    devices = joining.find_devices(ranks, options)
    start.check_forkable(site, ranks, options)
    logs = Logs(options.log_dir)
    logs.make()
    with listen() as door, closing(Workers(site, logs)) as workers, ExitStack() as inside:
        link = start.fork(workers, ranks)
        if link is not None:
            world = place(link.rank, ranks, door.getsockname()[1])
            door.close()
            tell = inside.enter_context(following(world, logs, link))
            yield inside.enter_context(taking_part(options, world, devices, tell))
            return
        workers.watch()
        # only now: its thread looks up an address, with locks that a fork would find held
        server = torch_internals.store_behind(door)
        world = place(0, ranks, server.port)
        yield inside.enter_context(taking_part(options, world, devices, workers.settle))


@contextmanager
def following(world: World, logs: Logs, link: ParentLink) -> Iterator[Tell]:
    """Be a rank above 0 inside, and end there: what comes after is rank 0's."""
    words = []

    def tell(word: str) -> None:
        words.append(word)
        if word == "raised":
            traceback.print_exc()  # to the log
        streams.flush()
        link.tell(word)

    try:
        notebook.to_log(logs.of(world.rank))
        yield tell
    except BaseException:
        if not words:
            tell("raised")
    finally:
        link.end()


def attach(call: DecoratedCall) -> Any:
    """Be a rank of torchrun from here on, to the end of the process, like under `autoddp run`."""
    world = World.read(os.environ)
    if world.world_size == 1:
        HERE.world = world
        return call.plain()
    launch.check_places(call.options)
    launch.check_disabled(call.options)
    devices = joining.find_devices(world.local_world_size, call.options)
    check_own(world, devices, call.site)
    logs = Logs(call.options.log_dir)
    if dist.is_initialized():
        return inside_existing_group(call, replace(world, agent_store=True), devices, logs)
    logs.make()
    terminal = os.dup(2)
    if world.rank:
        streams.redirect(logs.of(world.rank))
    undo = ExitStack()
    with logs.said_once(world.local_rank, terminal):
        group = undo.enter_context(joined(call.options, world, devices, apart=True)).group

    def end() -> None:
        code = int(hasattr(sys, "last_value"))
        if not code:
            group.conclude()
        # still in the group: others shall not fail because this rank left it
        worker.end(group, code)
        streams.flush()
        if code and logs.of(world.rank).exists():
            os.write(terminal, f"{logs.failure(world.rank, 'raised an exception')}\n".encode())
        else:
            logs.remove()
        undo.close()

    atexit.register(end)
    return call.plain()


def check_own(world: World, devices: Devices, site: str) -> None:
    """Check that the device this rank used before the call, if any, is the one it is given there.

    Raises:
        BadInput: The device is another rank's.
    """
    kind = accelerator.kind()
    shared = len(set(devices.visible)) < len(devices.visible) or devices.wanted == "gloo"
    if not kind or shared or torch.accelerator.device_count() == 1:
        return
    used = torch.accelerator.current_device_index()
    if used != world.local_rank:
        raise BadInput(
            f"rank {world.rank} has used {kind}:{used}, which is not its own, before {site}; call "
            f"torch.{kind}.set_device({world.local_rank}) first, or start the script by autoddp run"
        )


def inside_existing_group(call: DecoratedCall, world: World, devices: Devices, logs: Logs) -> Any:
    """Be a rank for the call, where the script has a process group, as in a worker of Ray Train."""
    with set_aside(world, logs) as meeting:
        return take_part(call, world, devices, meeting.tell, meeting.store)


def take_part(
    call: DecoratedCall,
    world: World,
    devices: Devices,
    tell: Tell,
    store: Store,
) -> Any:
    """Call the function in a session of its own, over a `store`, as the ranks are no forks."""
    given = call.args, call.kwargs
    with (
        taking_part(call.options, world, devices, tell, store) as run,
        agreed(run.group, call.site, call.variables, given),
    ):
        return whole(call.plain())


@contextmanager
def taking_part(
    options: Options,
    world: World,
    devices: Devices,
    tell: Tell,
    store: Store | None = None,
) -> Iterator[Run]:
    """Be a rank inside, and tell at the end whether it has returned or raised."""
    with joined(options, world, devices, store) as run:
        try:
            yield run
            run.group.conclude()
        except BaseException as error:
            strip(error)
            tell("raised")
            raise
        tell("returned")


@contextmanager
def joined(
    options: Options,
    world: World,
    devices: Devices,
    store: Store | None = None,
    apart: bool = False,
) -> Iterator[Run]:
    """Make this process a rank inside, and leave it as it was after.

    Where another launcher started the ranks `apart`, they compare what they are about to run.
    """
    given = (*ADDED, variable(devices.kind, os.environ), "NCCL_SOCKET_IFNAME")
    threads, environ = torch.get_num_threads(), {name: os.environ.get(name) for name in given}
    report = Report(world.rank == 0 and not options.quiet, options.strict)
    group, kept = None, False
    try:
        kept = worker.set_up(world)
        joining.take_device(world, devices)
        hidden = hide(os.environ)
        if options.view == "local":
            os.environ.update(hidden or world.variables(nodes=1))
        attempt = hidden.get("TORCHELASTIC_RESTART_COUNT", "0")
        group, chosen = joining.join(world, devices, attempt, store)
        if apart:
            likeness.compare(group, start.script(), options, apart)
        HERE.world = world
        report.say(worker.greeting(world, options, chosen, hidden))
        with session(world, options, group, report) as run:
            yield run
            run.view.pending.settle()
    finally:
        HERE.world = None
        if group is not None:
            leave(group)
        torch.set_num_threads(threads)
        if kept:
            allocator.give_back()
        for name, value in environ.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    nodes = world.nodes(hidden)
    report_file.write(report, options, world, nodes, chosen.backend)


def leave(group: Group) -> None:
    """Leave the job, with no process group left and no reducer on the script's parameters."""
    gc.collect()
    group.leave()
    pg, group.pg = group.pg, cast("dist.ProcessGroup", ClosedGroup())
    group.collective_check = cast(CollectiveCheck, ClosedGroup())
    dist.destroy_process_group(pg)


def place(rank: int, ranks: int, port: int) -> World:
    """Return the place of a rank of this node's only job."""
    return World(rank, ranks, rank, ranks, 0, HOST, port, agent_store=True)
