"""Comparison of numbers that must be equal on all ranks: weights, gradients, generators."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp.comm import accelerator
from autoddp.comm.accelerator import CPU
from autoddp.errors import Disagreement

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
        # by device: of each tensor its sum and that of its absolute values, and its name's number
        self._pairs: dict[torch.device, tuple[list[Tensor], list[int]]] = {}

    def add(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Add tensors under one name, as the sums over all of them."""
        for x in tensors:
            values = x.detach()
            values = values if values.layout is torch.strided else values.coalesce().values()
            values = torch.view_as_real(values) if values.is_complex() else values
            self._note(_sums(values))
        self.names.append(name)

    def add_generators(self) -> None:
        """Add the states of `random`, numpy and torch, on all devices: all ranks draw the same."""
        self._exactly("the state of torch's generator", torch.get_rng_state().numpy().tobytes())
        for device, state in zip(accelerator.devices(), accelerator.states(), strict=True):
            self._exactly(f"the state of the generator of {device}", state.cpu().numpy().tobytes())
        self._exactly("the state of random", repr(random.getstate()).encode())
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            self._exactly(
                "the state of numpy's generator", repr(_plain(numpy.random.get_state())).encode()
            )

    def add_number(self, name: str, number: float) -> None:
        """Add a number that no rounding has touched."""
        self._note(torch.tensor([number, 0.0], dtype=torch.float64, device=CPU))
        self.names.append(name)

    def _exactly(self, name: str, data: bytes) -> None:
        self.add_number(name, zlib.crc32(data))

    def _note(self, pair: Tensor) -> None:
        pairs, owners = self._pairs.setdefault(pair.device, ([], []))
        pairs.append(pair)
        owners.append(len(self.names))

    def _table(self) -> Tensor:
        """Return all sums, of shape (names, 2); wait for each device once."""
        table = torch.zeros(len(self.names), 2, dtype=torch.float64, device=CPU)
        for pairs, owners in self._pairs.values():
            found = torch.stack(pairs).cpu().double()
            table.index_add_(0, torch.tensor(owners, device=CPU), found)
        return table.nan_to_num()

    def compare(
        self,
        group: Group,
        where: str = "",
        exact: bool = False,
        why: str = WHY,
        ranks: list[int] | None = None,
    ) -> None:
        """Compare these numbers with those of all ranks; `why` they may differ is said.

        All ranks call this, also where the numbers of these `ranks` alone are looked at.

        Raises:
            Disagreement: Two ranks differ, by more than rounding unless `exact`.
        """
        if found := self.difference(group, exact, ranks):
            name, ours, other, theirs = found
            raise Disagreement(
                f"{where + ': ' if where else ''}{name} is not the same on all ranks "
                f"(rank 0 has {ours}, rank {other} {theirs}): {why}"
            )

    def difference(
        self, group: Group, exact: bool = False, ranks: list[int] | None = None
    ) -> tuple[str, str, int, str] | None:
        """Compare these numbers with those of all ranks, by more than rounding unless `exact`.

        Returns:
            The first name that differs, rank 0's numbers, the rank that is farthest from it, and
            that one's; None if all are alike.
        """
        found = group.all_gather(self._table())  # (ranks, names, 2)
        compared = list(range(len(found))) if ranks is None else ranks
        found = found[compared]
        allowed = 0.0 if exact else ROUNDING
        apart = (found.amax(0) - found.amin(0)).amax(1) > allowed * found[..., 1].amax(0)
        if not apart.any():
            return None
        at = int(apart.int().argmax())
        other = int((found[:, at] - found[0, at]).abs().amax(1).argmax())
        return self.names[at], _shown(found[0, at]), compared[other], _shown(found[other, at])


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


def _plain(state: Any) -> Any:
    """Return numpy's state with its array as bytes, since an array's text omits its middle."""
    return [part.tobytes() if hasattr(part, "tobytes") else part for part in state]
