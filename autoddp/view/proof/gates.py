"""Closed gates: parameters that begin at zero, and so hide whatever they multiply from a trial.

A residual branch that is scaled by a parameter which starts at 0 (ReZero, LayerScale, a last
normalization or projection that starts at 0) adds nothing at the first call, and may couple the
rows of a batch at any later one. So may what `1 - g` scales, where the number `g` starts at 1. So
what is proven with closed gates is proven once more with open ones. A bias of torch's own modules
is added, and hides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

CLOSED = 1e-3  # in float16 and bfloat16 what is scaled by less may vanish by rounding
OPEN = 0.125


def gates(module: nn.Module) -> list[Tensor]:
    """Return the trained parameters that are next to zero, and single numbers that are so, or one.

    Such numbers may be buffers, too.
    """
    found: dict[int, Tensor] = {}
    for part in module.modules():
        own = type(part).__module__.startswith("torch.nn.")
        for name, parameter in part._parameters.items():
            if (
                parameter is not None
                and parameter.requires_grad
                and not (own and name.endswith("bias"))
                and _closed(parameter, single=not own)
            ):
                found[id(parameter)] = parameter
        numbers = (b for b in part._buffers.values() if b is not None and b.numel() == 1)
        found |= {id(b): b for b in numbers if not own and _closed(b, single=True)}
    return list(found.values())


def _closed(x: Tensor, single: bool) -> bool:
    plain = type(x) in (Tensor, nn.Parameter) and x.layout is torch.strided
    if not plain or not x.is_floating_point() or not x.numel() or x.is_inference() or x.is_meta:
        return False
    size = x.detach().abs().amax()
    return bool(size < CLOSED or (single and x.numel() == 1 and (size - 1).abs() < CLOSED))


@contextmanager
def opened(closed: list[Tensor]) -> Iterator[None]:
    """Open gates, and close them again as they were."""
    before = [gate.data.clone() for gate in closed]
    try:
        for gate in closed:  # each row of a gate another way: it may be one of rows of the batch
            ramp = torch.linspace(OPEN, 2 * OPEN, gate.numel(), dtype=torch.float64, device="cpu")
            gate.data.copy_(ramp.view(gate.shape))
        yield
    finally:
        for gate, was in zip(closed, before, strict=True):
            gate.data.copy_(was)
