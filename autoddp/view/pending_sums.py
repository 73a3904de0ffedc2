"""Partial sums that nobody has read yet; reading one reduces all of them in one all-reduce."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autoddp.own_operations import unseen

if TYPE_CHECKING:
    from autoddp.comm.group import Group

MAX_PENDING = 1024


class Part:
    """A 0-dim sum over ranks: this rank's term, detached, and the total after the all-reduce.

    A mean is divided in float64 before the terms are added: it is rounded once, as in one process.
    """

    __slots__ = ("count", "local", "stream", "total")

    def __init__(self, local: Tensor, count: int = 1) -> None:
        self.local, self.count = local, count
        self.stream = stream_of(local)
        self.total: Tensor | None = None


def stream_of(x: Tensor) -> torch.Stream | None:
    """Return the current stream of the accelerator of `x`, for which other streams have to wait.

    None for devices without streams: cpu, meta and mps.
    """
    if x.device.type in ("cpu", "meta", "mps"):
        return None
    return torch.accelerator.current_stream(x.device)


class PendingSums:
    """The pending sums in the order of the script, which is the same on every rank.

    References are strong: garbage collectors of ranks run at different times.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.parts: list[Part] = []

    def add(self, local: Tensor, count: int = 1) -> Part:
        """Add a term, and reduce all if `MAX_PENDING` are waiting.

        Args:
            local: This rank's term, a 0-dim tensor.
            count: The divisor of the sum: the number of elements of a mean.
        """
        part = Part(local.detach(), count)
        self.parts.append(part)
        if len(self.parts) >= MAX_PENDING:
            self.reduce()
        return part

    @unseen
    def reduce(self) -> None:
        """All-reduce all pending sums, once for each device."""
        parts, self.parts = self.parts, []
        by_device: dict[torch.device, list[Part]] = {}
        for part in parts:
            by_device.setdefault(part.local.device, []).append(part)
        for device, some in by_device.items():
            for other in filter(None, {part.stream for part in some} - {stream_of(some[0].local)}):
                torch.accelerator.current_stream(device).wait_stream(other)
            columns = [_encode(part.local) / part.count for part in some]
            total = self.group.all_reduce(torch.cat(columns))
            values = total.split([len(column) for column in columns])
            for part, value in zip(some, values, strict=True):
                part.total = _decode(value, part.local)


HALF = 2**31


def _encode(x: Tensor) -> Tensor:
    """Encode `x` in float64; sums of encoded integers are exact."""
    if x.is_complex():
        return torch.view_as_real(x).double().reshape(2)
    if x.is_floating_point():
        return x.double().reshape(1)
    x = x.long()
    return torch.stack([x.div(HALF, rounding_mode="floor"), x.remainder(HALF)]).double()


def _decode(numbers: Tensor, like: Tensor) -> Tensor:
    if like.is_complex():
        return torch.view_as_complex(numbers.clone()).to(like.dtype)
    if like.is_floating_point():
        return numbers[0].to(like.dtype)
    high, low = numbers.long()
    return (high * HALF + low).to(like.dtype)
