"""How one rank joins the others: its device, the backend, the network interface."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autoddp import torch_internals
from autoddp.comm import accelerator
from autoddp.comm.control_plane import Channel
from autoddp.comm.group import Group
from autoddp.comm.place import HERE
from autoddp.comm.world import World, give
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process import devices, network
from autoddp.process.agreement import agree, compare, facts_of
from autoddp.process.devices import Devices, variable, words
from autoddp.process.script import Script

PLAIN = ("auto", "gloo")  # values of --backend that need no accelerator
NATIVE = "native"  # value of --backend: the accelerator's own backend, by whatever name


def find_devices() -> Devices:
    """Find the devices of this node's ranks, which this torch can use."""
    if torch_internals.accelerator() is None:
        return Devices(why="this torch is built without CUDA")
    return devices.there(os.environ)


def take_device(world: World, given: Devices) -> None:
    """Show this rank its own device alone, whatever the script sets later.

    A driver that was asked before still shows all devices: this rank's becomes the current one.
    """
    if not given.names:
        return
    give(HERE.given, variable(given.kind, os.environ), given.of(world.local_rank))
    begin = getattr(torch.get_device_module(given.kind), "init", None)
    if begin is not None:
        begin()
    several = torch.accelerator.device_count()
    if several > 1:
        torch.accelerator.set_device_index(world.local_rank % several)


def join(
    world: World,
    options: Options,
    given: Devices,
    script: Script | None,
    attempt: str,
    say: Callable[[str], None],
) -> tuple[Group, str, str]:
    """Join the other ranks of this attempt, without a trace that the script could see.

    Args:
        world: Place of this rank.
        options: Options of the job.
        given: Devices of this node's ranks.
        script: What is about to run; None where that is no file.
        attempt: How often the job has been started before.
        say: Prints a line about a long wait.

    Returns:
        The ranks, the name of their backend, and the reason for it.

    Raises:
        BadInput: Another process listens on rank 0's port, the nodes differ, or the ranks cannot
            use the backend that the user asked for.
    """
    hook, known = sys.excepthook, "GLOO_SOCKET_IFNAME" in os.environ
    set_interface(world)
    chosen = why = ""
    facts = facts_of(world, script, options, given)

    def decision(ranks: list[Any]) -> tuple[str, str]:
        compare([facts for _, facts in ranks])
        return decide(given, [place for place, _ in ranks], options.backend)

    def backend(channel: Channel) -> tuple[str, torch.device | None]:
        nonlocal chosen, why
        chosen, why = agree(channel.collectives, (place_of(world, given), facts), decision)
        device = None if chosen == "gloo" else accelerator.at(torch.device(given.kind))
        return chosen, device

    if world.rank == 0 and not world.agent_store:
        network.check_free(world.master_port, "MASTER_PORT")
    group = Group.join(world, attempt, backend, say)
    group.kind = given.kind if given.names else ""
    sys.excepthook = hook  # torch's would put the rank before every line of a traceback
    if not known:
        os.environ.pop("GLOO_SOCKET_IFNAME", None)  # NCCL reads its own later, at first use
    return group, chosen, why


def place_of(world: World, given: Devices) -> str:
    """Return the name of this rank's device, which no other device of the job has; else empty."""
    mine = accelerator.identity(given.of(world.local_rank)) if given.names else ""
    return mine and f"{socket.gethostname()} {mine}"


def set_interface(world: World) -> None:
    """Select the interface that routes to the master, unless the user has selected one."""
    interface = network.interface_to(world.master_addr)
    if interface is None:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if world.world_size > world.local_world_size and "NCCL_SOCKET_IFNAME" not in os.environ:
        give(HERE.given, "NCCL_SOCKET_IFNAME", f"={interface}")  # without `=`, eth0 fits eth01, too


def decide(found: Devices, places: Sequence[str], wanted: str = "auto") -> tuple[str, str]:
    """Choose the backend for all ranks; return its name, and the reason for the line at the start.

    Args:
        found: The devices of rank 0's node; each rank has devices of that kind.
        places: For each rank, a name of its device that no other device of the job has; empty for
            CPUs.
        wanted: `--backend`.

    Raises:
        BadInput: The ranks cannot use what is wanted.
    """
    ranks, there, why = len(places), len(set(places)), "asked for"
    if not places[0]:
        why = found.why
    elif ranks > there:
        why = f"{ranks} ranks share {words(found.kind, there)}"
    elif not found.backend or wanted not in (*PLAIN, NATIVE, found.backend):
        why = f"the backend of {found.kind} is {found.backend or 'none'}"
    elif wanted != "gloo":
        return found.backend, f"a {words(found.kind, 1)[2:]} for each rank"
    if wanted not in PLAIN:
        raise BadInput(f"--backend is {wanted}, but {why}; use --backend gloo")
    if places[0] and found.kind != "cuda":
        name = variable(found.kind, os.environ)
        raise BadInput(
            f"gloo knows no tensors of {found.kind}, and is the backend here ({why}); give each "
            f"rank a device of its own, or have all compute on CPUs: {name}= before the command"
        )
    return "gloo", why
