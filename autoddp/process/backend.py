"""The backend that all ranks talk by: rank 0 decides by the devices that all ranks compute on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autoddp.errors import BadInput
from autoddp.process.devices import PLAIN, variable, words


@dataclass(frozen=True)
class RankDevice:
    """The device of one rank, as that rank describes it to rank 0.

    Attributes:
        host: Name of the rank's machine.
        device: Name that no other device of that machine has; empty: the rank has no device.
        kind: torch's word for the accelerator.
        backend: Name of the accelerator's own backend; empty: it has none.
        each: Number of devices that the rank is shown.
        why: Reason why there is no device, for the user.
    """

    host: str
    device: str = ""
    kind: str = ""
    backend: str = ""
    each: int = 1
    why: str = "no GPU here"

    @property
    def words(self) -> str:
        """Describe for messages what the rank computes on."""
        if not self.device:
            return f"CPUs ({self.why})"
        return f"{words(self.kind, self.each)} ({self.backend or 'gloo'})"


@dataclass(frozen=True)
class Choice:
    """The backend that rank 0 has chosen for all ranks, and what follows from it.

    Attributes:
        backend: Name of the backend that the ranks talk by.
        why: Reason for that backend, for the line at the start.
        part: Fraction of its device's memory that a rank may take.
        kind: torch's word for the accelerator that the ranks compute on; empty: CPUs.
        alone: Whether each rank talks from one device.
    """

    backend: str = "gloo"
    why: str = ""
    part: float = 1.0
    kind: str = ""
    alone: bool = False


def decide(claims: Sequence[RankDevice], wanted: str = "auto") -> Choice:
    """Choose the backend by the devices of all ranks, given in the order of the ranks.

    Raises:
        BadInput: The ranks cannot use what is wanted.
    """
    first, places = claims[0], Counter((t.host, t.device) for t in claims)
    if not first.device:
        return Choice("gloo", first.why)
    most, why = max(places.values()), "asked for"
    if most > 1:
        why = f"{len(claims)} ranks share {words(first.kind, len(places))}"
    elif not first.backend:
        why = f"{first.kind} has no backend of its own"
    elif wanted != "gloo":
        one = f"a {words(first.kind, 1)[2:]}" if first.each == 1 else words(first.kind, first.each)
        why = f"{one} for each rank"
        return Choice(first.backend, why, 1.0, first.kind, first.each == 1)
    if wanted not in PLAIN:
        raise BadInput(f"--backend is {wanted}, but {why}; use --backend gloo")
    if first.kind != "cuda":
        name = variable(first.kind, os.environ)
        raise BadInput(
            f"gloo knows no tensors of {first.kind}, and is the backend here ({why}); give each "
            f"rank a device of its own, or have all compute on CPUs: {name}= before the command"
        )
    why += f", each at most 1/{most} of the memory" if most > 1 else ""
    return Choice("gloo", why, 1 / most, first.kind)
