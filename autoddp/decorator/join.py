"""A call of a decorated function as a job, on rank 0, on the others, and on torchrun's ranks."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

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
from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch.rendezvous import HOST, listen
from autoddp.options import Options
from autoddp.process import joining, likeness, report_file, streams, worker
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
    if dist.is_initialized():
        raise BadInput(
            "@distributed makes its own process group, but the script has initialised one already"
        )
    launch.check_places(call.options)
    launch.check_disabled(call.options)
    devices = joining.find_devices(ranks, call.options)
    start.check_forkable(call.site, ranks, call.options)
    logs = Logs(call.options.log_dir)
    logs.make()
    with listen() as door, closing(Workers(call.site, logs)) as workers:
        link = start.fork(workers, ranks)
        if link is not None:
            world = place(link.rank, ranks, door.getsockname()[1])
            door.close()
            follow(call, world, devices, logs, link)
        workers.watch()
        # only now: its thread looks up an address, with locks that a fork would find held
        server = torch_internals.store_behind(door)
        return take_part(call, place(0, ranks, server.port), devices, workers.settle)


def follow(
    call: DecoratedCall, world: World, devices: Devices, logs: Logs, link: ParentLink
) -> NoReturn:
    """Be a rank above 0 for the time of the call, and end with it: the script is rank 0's."""
    words = []

    def tell(word: str) -> None:
        words.append(word)
        if word == "raised":
            traceback.print_exc()  # to the log
        streams.flush()
        link.tell(word)

    try:
        notebook.to_log(logs.of(world.rank))
        take_part(call, world, devices, tell)
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
        group = undo.enter_context(joined(call, world, devices, apart=True))

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
    store: Store | None = None,
) -> Any:
    """Call the function in a session of its own, over a `store` where ranks are no forks."""
    given = call.args, call.kwargs
    with joined(call, world, devices, store) as group:
        alike = nullcontext() if store is None else agreed(group, call.site, call.variables, given)
        try:
            with alike:
                value = whole(call.plain())
                group.conclude()
        except BaseException as error:
            strip(error)
            tell("raised")
            raise
        tell("returned")
    return value


@contextmanager
def joined(
    call: DecoratedCall,
    world: World,
    devices: Devices,
    store: Store | None = None,
    apart: bool = False,
) -> Iterator[Group]:
    """Make this process a rank inside, and leave it as it was after.

    Where another launcher started the ranks `apart`, they compare what they are about to run.
    """
    given = (*ADDED, variable(devices.kind, os.environ), "NCCL_SOCKET_IFNAME")
    threads, environ = torch.get_num_threads(), {name: os.environ.get(name) for name in given}
    report = Report(world.rank == 0 and not call.options.quiet, call.options.strict)
    group = None
    try:
        worker.set_threads(world)
        joining.take_device(world, devices)
        hidden = hide(os.environ)
        if call.options.view == "local":
            os.environ.update(hidden or world.variables(nodes=1))
        attempt = hidden.get("TORCHELASTIC_RESTART_COUNT", "0")
        group, chosen = joining.join(world, devices, attempt, store)
        if apart:
            likeness.compare(group, start.script(), call.options, apart)
        HERE.world = world
        report.say(worker.greeting(world, call.options, chosen, hidden))
        with session(world, call.options, group, report) as run:
            yield group
            run.view.pending.settle()
    finally:
        HERE.world = None
        if group is not None:
            leave(group)
        torch.set_num_threads(threads)
        for name, value in environ.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    nodes = world.nodes(hidden)
    report_file.write(report, call.options, world, nodes, chosen.backend)


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
