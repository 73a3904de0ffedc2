"""The meeting of one rank with the others: its device, its backend, the interface that they use."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch.distributed import Store

from autoddp import torch_internals
from autoddp.comm import accelerator
from autoddp.comm.group import Group
from autoddp.comm.patience import silent
from autoddp.comm.place import HERE
from autoddp.comm.world import World, give
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process import devices, network
from autoddp.process.backend import Choice, RankDevice, decide
from autoddp.process.devices import Devices, There
from autoddp.process.meeting import compare, facts_of, meet
from autoddp.process.script import Script


def find_devices(ranks: int, options: Options) -> Devices:
    """Find the devices of this node's ranks."""
    built = torch_internals.accelerator() is not None
    found = devices.there(os.environ) if built else There()
    own = "LOCAL_RANK" in os.environ  # another launcher's ranks, each of which may be shown its own
    if own and "SLURM_GPUS_PER_TASK" in os.environ:
        found = replace(found, names=found.names[: options.gpus_per_rank])
    given = devices.share(found, ranks, options.backend, options.gpus_per_rank, own)
    return given if built else replace(given, why="this torch is built without CUDA")


def take_device(world: World, given: Devices) -> None:
    """Show this rank its own device alone, whatever the script sets later.

    A driver that was asked before still shows all devices: this rank's becomes the current one.
    """
    if not given.visible:
        return
    mine = given.visible[world.local_rank]
    give(HERE.given, devices.variable(given.kind, os.environ), mine)
    begin = getattr(torch.get_device_module(given.kind), "init", None)
    if begin is not None:
        begin()
    several = torch.accelerator.device_count()
    if several > mine.count(",") + 1:
        torch.accelerator.set_device_index(world.local_rank % several)


def join(
    world: World,
    options: Options,
    given: Devices,
    script: Script | None,
    apart: bool,
    attempt: str,
    say: Callable[[str], None] = silent,
) -> tuple[Group, Choice]:
    """Meet the other ranks of this attempt, leaving no trace of it for the script to see.

    Args:
        world: Place of this rank.
        options: Options of the job.
        given: Devices of this node's ranks.
        script: What is about to run; None where that is no file.
        apart: Whether another launcher has started each rank.
        attempt: How often the job has been started before.
        say: Tells the user of a long wait.

    Raises:
        BadInput: Something else listens on rank 0's port, nodes differ, or the ranks cannot talk as
            is asked.
    """
    hook, known = sys.excepthook, "GLOO_SOCKET_IFNAME" in os.environ
    set_interface(world)
    chosen = Choice()
    mine, facts = rank_device(world, given), facts_of(world, script, options, apart)
    if facts is not None:
        facts["what a rank computes on"] = mine.words

    def backend(over: Store) -> tuple[str, torch.device | None]:
        nonlocal chosen
        act = partial(decision, options.backend, "rank" if apart else "node")
        chosen = Choice(**meet(over, world, (asdict(mine), facts), act))
        return chosen.backend, accelerator.at(torch.device(chosen.kind)) if chosen.alone else None

    group = Group.join(hosted(world), attempt, backend, say)
    group.kind = chosen.kind
    sys.excepthook = hook  # torch's would put the rank before every line of a traceback
    if not known:
        os.environ.pop("GLOO_SOCKET_IFNAME", None)  # NCCL reads its own later, at first use
    take_part_of_memory(chosen.part)
    return group, chosen


def decision(wanted: str, kind: str, ranks: list[Any]) -> dict[str, Any]:
    """Decide, on rank 0, by the device and the facts of each rank."""
    compare([facts for _, facts in ranks], kind)
    return asdict(decide([RankDevice(**device) for device, _ in ranks], wanted))


def rank_device(world: World, given: Devices) -> RankDevice:
    """Describe the device of this rank to rank 0."""
    host = socket.gethostname()
    if not given.visible:
        return RankDevice(host, why=given.why)
    mine = given.visible[world.local_rank]
    each = mine.count(",") + 1
    return RankDevice(host, accelerator.identity(mine), given.kind, given.backend, each)


def take_part_of_memory(part: float) -> None:
    """Leave the rest of a device to the ranks that share it."""
    limit = getattr(torch.get_device_module(), "set_per_process_memory_fraction", None)
    if part < 1 and limit is not None:
        for device in accelerator.devices():
            limit(part, device)


def hosted(world: World) -> World:
    """Let rank 0 use the store of its Ray Train worker, if that store listens on rank 0's port.

    Raises:
        BadInput: Something else listens there.
    """
    if world.rank or world.agent_store:
        return world
    try:
        network.check_free(world.master_port)
    except BadInput:
        if "RAY_JOB_ID" in os.environ and network.has_store(world.master_addr, world.master_port):
            return replace(world, agent_store=True)
        raise BadInput(
            f"MASTER_PORT is {world.master_port}, where rank 0 cannot listen: another process "
            "does; give the job a free port"
        ) from None
    return world


def set_interface(world: World) -> None:
    """Select the interface that routes to the master, unless the user has selected one."""
    interface = network.interface_to(world.master_addr)
    if interface is None:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if world.world_size > world.local_world_size and "NCCL_SOCKET_IFNAME" not in os.environ:
        give(HERE.given, "NCCL_SOCKET_IFNAME", f"={interface}")  # without `=`, eth0 fits eth01, too
