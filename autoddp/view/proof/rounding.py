"""The tolerance for two forwards of the same rows that differ by rounding alone."""

from __future__ import annotations

import torch

from autoddp.torch_internals import precisions

LOW = 5e-2  # halves, times what a sum of many terms makes of it
TF32 = 1e-2
SINGLE = 1e-3
DOUBLE = 1e-7
OFF = {"none", "ieee"}


def tolerance(dtypes: set[torch.dtype], device: str) -> float:
    """Return the tolerance of the coarsest dtype that was computed in, on this type of device."""
    coarsest = max(torch.finfo(dtype).eps for dtype in dtypes)
    if coarsest > torch.finfo(torch.float32).eps:
        return LOW
    return DOUBLE if coarsest <= torch.finfo(torch.float64).eps else single(device)


def single(device: str) -> float:
    """Return the tolerance of float32.

    Kernels may compute float32 in less: those for some rows, and not those for others.
    """
    try:
        kinds = precisions(device)
    except Exception:  # each version of torch has its own names for them, and refuses to mix them
        kinds = {"unknown"}
    if "bf16" in kinds:
        return LOW
    return SINGLE if kinds <= OFF else TF32
