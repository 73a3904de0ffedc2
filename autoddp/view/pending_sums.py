"""Partial sums that nobody has read yet; reading one reduces all of them in one all-reduce.

What is computed of them (a count divided by the rows, a loss and its penalty) is computed of their
totals, in the order of the script: each step is rounded once, as in one process. Terms that were
scaled by each rank would make `100 * correct / rows` depend on which rank's rows are correct.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp.own_operations import unseen

if TYPE_CHECKING:
    from autoddp.comm.group import Group

MAX_PENDING = 1024


class Part:
    """A 0-dim sum over ranks: this rank's term, detached, and the total after the all-reduce.

    The total of a mean is divided in float64: it is rounded once, as in one process.
    """

    __slots__ = ("count", "local", "stream", "total")

    def __init__(self, local: Tensor, count: int = 1) -> None:
        self.local, self.count = local, count
        self.stream = stream_of(local)
        self.total: Tensor | None = None


class Computed:
    """A 0-dim value of sums over ranks, which is computed once these are reduced.

    Args:
        op: A function of plain tensors and numbers.
        operands: What it gets: a sum or such a value with its dtype, a number, or a tensor, whose
            value is kept.
    """

    __slots__ = ("op", "operands", "stream", "total")

    def __init__(self, op: Callable[..., Tensor], operands: list[Any], like: Tensor) -> None:
        keep = (x.detach().clone() if isinstance(x, Tensor) else x for x in operands)
        self.op, self.operands = op, [*keep]
        self.stream = stream_of(like)
        self.total: Tensor | None = None

    def compute(self) -> None:
        """Compute the value of the totals."""
        self.total = self.op(*map(_value, self.operands))
        self.operands = []


def _value(operand: Any) -> Any:
    """Return an operand as a plain tensor or a number."""
    if not isinstance(operand, tuple):
        return operand
    part, dtype = operand
    return part.total.to(dtype)


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
        self.computed: list[Computed] = []

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

    def compute(self, op: Callable[..., Tensor], operands: list[Any], like: Tensor) -> Computed:
        """Add a value that is computed of others, by `op`, when these are reduced."""
        made = Computed(op, operands, like)
        self.computed.append(made)
        if len(self.computed) >= MAX_PENDING:
            self.reduce()
        return made

    @unseen
    def reduce(self) -> None:
        """All-reduce all pending sums, once for each device, and compute what is made of them."""
        parts, self.parts = self.parts, []
        computed, self.computed = self.computed, []
        streams = {part.stream for part in parts} | {made.stream for made in computed}
        for stream in filter(None, streams):
            current = torch.accelerator.current_stream(stream.device)
            if current != stream:
                current.wait_stream(stream)
        by_device: dict[torch.device, list[Part]] = {}
        for part in parts:
            by_device.setdefault(part.local.device, []).append(part)
        for some in by_device.values():
            columns = [_encode(part.local) for part in some]
            total = self.group.all_reduce(torch.cat(columns))
            values = total.split([len(column) for column in columns])
            for part, value in zip(some, values, strict=True):
                part.total = _decode(value if part.count == 1 else value / part.count, part.local)
        for made in computed:
            made.compute()


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
