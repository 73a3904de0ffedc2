"""Comparison of numbers that must be equal on all ranks: weights, gradients, generators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autoddp.comm.accelerator import CPU
from autoddp.errors import Disagreement
from autoddp.training.loading.generators import Generators

if TYPE_CHECKING:
    from autoddp.comm.group import Group

# Of the sum of the absolute values: GPUs of two kinds round differently, and so much is harmless.
ROUNDING = 1e-5
PIECE = 1 << 16  # elements, in float64 half of a small second-level cache
WHY = (
    "something that differs between ranks went into it, such as a file, a clock, a thread that "
    "draws, another kind of GPU, or a backward that went past torch.autograd.backward"
)


class Fingerprint:
    """Named numbers to compare: of a tensor, the sums of its elements with signs and without."""

    def __init__(self) -> None:
        self.names: list[str] = []
        # by device, the number of a name and sums with signs and without
        self._sums: dict[torch.device, list[tuple[int, Tensor]]] = {}

    def add(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Add tensors under one name, as the sums over all of them; some have no numbers."""
        self.names.append(name)
        for x in tensors:
            if x.is_meta or hasattr(x, "fake_mode"):
                continue
            values = x.detach()
            values = values if values.layout is torch.strided else values.coalesce().values()
            self._note(_sums(torch.view_as_real(values) if values.is_complex() else values))

    def add_each(self, leaves: list[Tensor]) -> None:
        """Add leaves, each under its number and shape."""
        for number, leaf in enumerate(leaves):
            self.add(f"parameter {number} of {len(leaves)}, of shape {tuple(leaf.shape)},", [leaf])

    def add_generators(self) -> None:
        """Add the states of `random`, numpy and torch, on all devices: all ranks draw the same."""
        for name, checksum in Generators().checksums().items():
            self.add_number(f"the state of the generator of {name}", checksum)

    def add_number(self, name: str, number: float) -> None:
        """Add a number that no rounding has touched."""
        self.names.append(name)
        self._note(torch.tensor([number, 0.0], dtype=torch.float64, device=CPU))

    def _note(self, sums: Tensor) -> None:
        """Note sums of the newest name."""
        self._sums.setdefault(sums.device, []).append((len(self.names) - 1, sums))

    def _table(self) -> Tensor:
        """Return the sums of each name; those on a device come to the host in one copy."""
        table = torch.zeros(len(self.names), 2, dtype=torch.float64, device=CPU)
        for found in self._sums.values():
            numbers = torch.tensor([number for number, _ in found], device=CPU)
            sums = torch.stack([sums for _, sums in found]).cpu()
            table.index_add_(0, numbers, sums.double())
        return table

    def compare(
        self,
        group: Group,
        where: str = "",
        exact: bool = False,
        why: str = WHY,
        ranks: list[int] | None = None,
    ) -> None:
        """Compare these numbers with those of all ranks.

        Args:
            group: The ranks, all of which call this.
            where: The line of the script, for the error.
            exact: Whether rounding counts as a difference.
            why: The reason for which numbers may differ, for the error.
            ranks: The ranks whose numbers are compared; all if None.

        Raises:
            Disagreement: Two ranks differ.
        """
        found = group.all_gather(self._table().nan_to_num())  # (ranks, names, 2)
        compared = list(range(len(found))) if ranks is None else ranks
        found = found[compared]
        allowed = 0.0 if exact else ROUNDING
        apart = (found.amax(0) - found.amin(0)).amax(1) > allowed * found[..., 1].amax(0)
        if not apart.any():
            return
        at = int(apart.int().argmax())
        farthest = int((found[:, at] - found[0, at]).abs().amax(1).argmax())
        raise Disagreement(
            f"{where and where + ': '}{self.names[at]} is not the same on all ranks (rank 0 has "
            f"{_shown(found[0, at])}, rank {compared[farthest]} {_shown(found[farthest, at])}): "
            f"{why}"
        )


def _sums(values: Tensor) -> Tensor:
    """Sum values and absolute values, in float64 where the device has it.

    A piece of which a CPU's cache holds a copy takes an eighth of the time of sums that convert
    each element.
    """
    wide = torch.float32 if values.device.type == "mps" else torch.float64
    pieces = values.reshape(-1).split(PIECE if values.is_cpu else 256 * PIECE)
    copies = (piece.to(wide, copy=True) for piece in pieces)
    return torch.stack([torch.stack([x.sum(), x.abs_().sum()]) for x in copies]).sum(0)


def _shown(pair: Tensor) -> str:
    """Format a sum and the sum of absolute values, which is 0 for a number that is no sum."""
    total, absolute = pair.tolist()
    return f"{total:.9g}" if not absolute else f"{total:.9g}, {absolute:.9g} without signs"
