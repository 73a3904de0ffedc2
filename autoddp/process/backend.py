"""The choice of the backend that all ranks talk by, which rank 0 makes once, from their devices."""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from autoddp.errors import BadInput
from autoddp.process.devices import PLAIN, Devices, variable, words

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.world import World

REFUSED = "!"


@dataclass(frozen=True)
class RankDevice:
    """The device of one rank, as that rank describes it to rank 0.

    Attributes:
        host: Name of the rank's machine.
        device: Name that no other device of that machine has; empty: the rank has no device.
        kind: torch's word for the accelerator.
        backend: Name of the accelerator's own backend; empty: it has none.
        wanted: `--backend`.
        each: Number of devices that the rank is shown.
        why: Reason why there is no device, for the user.
        name: Model of the device, as its maker sells it.
    """

    host: str
    device: str
    kind: str
    backend: str
    wanted: str
    each: int = 1
    why: str = ""
    name: str = ""


@dataclass(frozen=True)
class Choice:
    """The backend that rank 0 has chosen for all ranks, and what follows from it.

    Attributes:
        backend: Name of the backend that the ranks talk by.
        why: Reason for that backend, for the line at the start.
        part: Fraction of its device's memory that a rank may take.
        kind: torch's word for the accelerator that the ranks compute on; empty: CPUs.
        unlike: Warning where the ranks compute on devices of several models; else empty.
        alone: Whether each rank talks from one device.
    """

    backend: str = "gloo"
    why: str = ""
    part: float = 1.0
    kind: str = ""
    unlike: str = ""
    alone: bool = False


def decide(claims: Sequence[RankDevice]) -> Choice:
    """Choose the backend from what all ranks say of their devices, in the order of the ranks.

    Raises:
        BadInput: The ranks compute on different kinds of devices, a backend is asked for that they
            cannot use, or nodes ask for different ones.
    """
    first = claims[0]
    other = next((t for t in claims if t.wanted != first.wanted), None)
    if other is not None:
        raise BadInput(
            f"--backend is {first.wanted} on {first.host}, but {other.wanted} on {other.host}; "
            "give all nodes the same"
        )
    _one_kind(claims)
    against = _against(claims)
    wanted = first.wanted
    if wanted not in PLAIN and against:
        raise BadInput(f"--backend is {wanted}, but {against}; use --backend gloo")
    most = max(Counter((t.host, t.device) for t in claims if t.device).values(), default=1)
    kind = first.kind if first.device else ""
    if wanted == "gloo" or against or not first.device:
        why = "asked for" if wanted == "gloo" and first.device else against or first.why
        return Choice("gloo", f"{why}{_part(most)}", 1 / most, kind, _unlike(claims))
    one = f"a {words(first.kind, 1)[2:]}" if first.each == 1 else words(first.kind, first.each)
    alone = all(t.each == 1 for t in claims)
    return Choice(first.backend, f"{one} for each rank", 1.0, kind, _unlike(claims), alone)


def _one_kind(claims: Sequence[RankDevice]) -> None:
    """Check that the script gets one answer on all ranks when it asks for its devices.

    Raises:
        BadInput: Some ranks have a device and some none, or their kinds differ.
    """
    first = claims[0]
    for rank, t in enumerate(claims):
        if bool(t.device) == bool(first.device) and t.kind == first.kind:
            continue
        lacks = next((each.why for each in (t, first) if not each.device), "") or "no GPU here"
        here, there = (
            f"on {each.kind}" if each.device else f"on CPUs ({lacks})" for each in (t, first)
        )
        names = sorted({variable(each.kind, os.environ) for each in (t, first) if each.device})
        raise BadInput(
            f"rank {rank} on {t.host} computes {here}, rank 0 on {first.host} {there}; "
            "give all nodes the same, or have all compute on CPUs: "
            f"{' '.join(f'{name}=' for name in names)} before the command"
        )


def _unlike(claims: Sequence[RankDevice]) -> str:
    first = claims[0]
    rank = next(
        (k for k, t in enumerate(claims) if t.device and first.device and t.name != first.name),
        None,
    )
    if rank is None:
        return ""
    return (
        f"rank {rank} computes on {claims[rank].name}, rank 0 on {first.name}: each rounds in its "
        "own way, so decisions may differ that hang on the last digits of what ranks compute "
        "alike; give all the same"
    )


def _against(claims: Sequence[RankDevice]) -> str:
    """Return why the accelerator's own backend cannot be used; empty if it can."""
    places = Counter((t.host, t.device) for t in claims)
    have = [t for t in claims if t.device]
    if not have:
        return claims[0].why or "no GPU here"
    for rank, t in enumerate(claims):
        if t.backend != claims[0].backend:
            here, there = t.backend or "gloo", claims[0].backend or "gloo"
            return f"rank {rank} on {t.host} can talk by {here}, rank 0 by {there}"
        if not t.backend:
            return f"{t.kind} has no backend of its own"
    if len(places) < len(claims):
        return f"{len(claims)} ranks share {words(claims[0].kind, len(places))}"
    return ""


def _part(most: int) -> str:
    return f", each at most 1/{most} of the memory" if most > 1 else ""


def accelerator_name() -> str:
    """Return the model of the current device; empty where torch does not say it."""
    from autoddp.comm import accelerator

    return accelerator.name()


def choose(world: World, store: Store, devices: Devices, device: str) -> Choice:
    """Tell rank 0 this rank's device over `store`, and return the choice that rank 0 makes for all.

    Args:
        world: Place of this rank.
        store: Store that all ranks have joined.
        devices: Devices of this node's ranks.
        device: Name of this rank's device; empty: it has none.

    Raises:
        BadInput: No backend serves all ranks; it is raised on all of them alike.
    """
    each = devices.visible[world.local_rank].count(",") + 1 if devices.visible else 1
    mine = RankDevice(
        *(
            socket.gethostname(),
            device,
            devices.kind,
            devices.backend,
            devices.wanted,
            each,
            devices.why,
        ),
        accelerator_name() if device else "",
    )
    store.set(f"computes/{world.rank}", json.dumps(asdict(mine)))
    if world.rank == 0:
        claims = [
            RankDevice(**json.loads(store.get(f"computes/{rank}")))
            for rank in range(world.world_size)
        ]
        try:
            said = json.dumps(asdict(decide(claims)))
        except BadInput as error:
            said = REFUSED + str(error)
        store.set("backend", said)
    said = store.get("backend").decode()
    if said.startswith(REFUSED):
        raise BadInput(said[1:])
    return Choice(**json.loads(said))
