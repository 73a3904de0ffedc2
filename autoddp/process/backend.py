"""The backend that all ranks talk by: rank 0 decides by the devices that all ranks compute on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from autoddp.errors import BadInput
from autoddp.process.devices import PLAIN, Devices, variable, words


@dataclass(frozen=True)
class Choice:
    """The backend that rank 0 has chosen for all ranks.

    Attributes:
        backend: Name of the backend that the ranks talk by.
        why: Reason for that backend, for the line at the start.
        kind: torch's word for the accelerator that the ranks compute on; empty: CPUs.
    """

    backend: str = "gloo"
    why: str = ""
    kind: str = ""


def decide(found: Devices, places: Sequence[str], wanted: str = "auto") -> Choice:
    """Choose the backend for all ranks.

    Args:
        found: The devices of rank 0's node; each rank has devices of that kind.
        places: For each rank, a name of its device that no other device of the job has; empty for
            CPUs.
        wanted: `--backend`.

    Raises:
        BadInput: The ranks cannot use what is wanted.
    """
    if not places[0]:
        return Choice("gloo", found.why)
    ranks, there, why = len(places), len(set(places)), "asked for"
    if ranks > there:
        why = f"{ranks} ranks share {words(found.kind, there)}"
    elif not found.backend:
        why = f"{found.kind} has no backend of its own"
    elif wanted != "gloo":
        one = words(found.kind, found.each)
        one = f"a {one[2:]}" if found.each == 1 else one
        return Choice(found.backend, f"{one} for each rank", found.kind)
    if wanted not in PLAIN:
        raise BadInput(f"--backend is {wanted}, but {why}; use --backend gloo")
    if found.kind != "cuda":
        name = variable(found.kind, os.environ)
        raise BadInput(
            f"gloo knows no tensors of {found.kind}, and is the backend here ({why}); give each "
            f"rank a device of its own, or have all compute on CPUs: {name}= before the command"
        )
    return Choice("gloo", why, found.kind)
