"""Whole parameters for a file: gathered one at a time, and kept by the ranks that write it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.serialization import location_tag, register_package

from autoddp.training.parameters.layout import all_gather

if TYPE_CHECKING:
    from autoddp.training.parameters.shard import Held, Memory
    from autoddp.training.parameters.wholes import Wholes

LOCATION = "_autoddp_location"  # of a storage in host memory: the one that its file names
BEFORE_CPU = -4507  # torch sorts taggers by their numbers, which have to differ
META = torch.device("meta")


def _location(storage: Any) -> str | None:
    found: str | None = getattr(storage, LOCATION, None)
    # a new string each time, as torch's own: a pickle refers back to one that it has seen
    return None if found is None else "".join([*found])


register_package(BEFORE_CPU, _location, lambda storage, location: None)


class Saving:
    """One call that writes a file.

    Other ranks only take part in gathering: what they would write is discarded.

    Args:
        keeps: Whether this rank writes the file.
    """

    def __init__(self, wholes: Wholes, keeps: bool) -> None:
        self._wholes, self._keeps = wholes, keeps
        # by the memory of the shard and its writes: what is tied is gathered and written once
        self._known: dict[tuple[Memory, int], Tensor] = {}

    def whole(self, mine: Held) -> Tensor:
        """Return the whole tensor in host memory, without data on ranks that write no file.

        A call that failed on rank 0 alone is made again there: what has been gathered stays known,
        as the other ranks do not gather it again.
        """
        key = mine.memory, mine.memory.writes
        with torch.inference_mode(False), torch.no_grad():
            flat = self._known.get(key)
            if flat is None:
                flat = self._known[key] = self._flat(mine)
            return mine.layout.whole(flat)

    def _flat(self, mine: Held) -> Tensor:
        layout, local = mine.layout, mine.local.detach()
        with self._wholes.internal():
            rows = all_gather([mine])
            if not self._keeps:
                return torch.empty(layout.shape.numel(), dtype=local.dtype, device=META)
            flat = torch.empty(layout.shape.numel(), dtype=local.dtype, device="cpu")
            for rank, row in enumerate(rows):
                flat[layout.cuts[rank] : layout.cuts[rank + 1]] = row[: layout.length(rank)]
            if not local.is_cpu:
                setattr(flat.untyped_storage(), LOCATION, location_tag(local.untyped_storage()))
            return flat


def pickled_by_torch(depth: int = 2) -> bool:
    """Return whether `torch.save` has called the caller, and not code that may use the result."""
    return sys._getframe(depth).f_globals.get("__name__") == "torch.serialization"


@contextmanager
def saving(wholes: Wholes, keeps: bool) -> Iterator[None]:
    """Gather for a file inside."""
    wholes.agreement.compare()
    before, wholes.saving = wholes.saving, Saving(wholes, keeps)
    try:
        yield
    finally:
        wholes.saving = before
