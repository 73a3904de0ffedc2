"""How what BatchNorm is given lies in memory, on which torch's kernels depend."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor


def dense(x: Tensor) -> Tensor:
    """Return `x` in a layout without gaps that SyncBatchNorm's kernels take."""
    last = (torch.channels_last, torch.channels_last_3d)
    return x if any(x.is_contiguous(memory_format=kind) for kind in last) else x.contiguous()


def laid_out_as(strides: tuple[int, ...], g: Tensor) -> Tensor:
    """Return `g` in the memory layout of the input.

    Of one row that lies otherwise torch's kernel for CPUs (2.6 to 2.14) computes other numbers.
    """
    if g.stride() == strides:
        return g
    return torch.empty_strided(g.shape, strides, dtype=g.dtype, device=g.device).copy_(g)


def keep_layout(x: Tensor, out: Tensor) -> Tensor:
    """Return `out`, to which torch has normalized `x`; its gradient will come as `x` lies."""
    if len(x) == 1 and out.requires_grad:
        out.register_hook(partial(laid_out_as, x.stride()))
    return out
