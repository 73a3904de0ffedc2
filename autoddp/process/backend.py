"""The backend of all ranks' collectives, which rank 0 chooses by the devices of all ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from autoddp.errors import BadInput
from autoddp.process.devices import Devices, variable, words

PLAIN = ("auto", "gloo")  # values of --backend that need no accelerator
NATIVE = "native"  # value of --backend: the accelerator's own backend, by whatever name


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
