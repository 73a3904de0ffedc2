"""Small tensors as bytes, which travel in messages between ranks and are reduced there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def bytes_of(x: Tensor) -> bytes:
    """Return the elements of `x` as bytes, in their order."""
    flat = x.detach().resolve_conj().resolve_neg().contiguous()
    if flat._is_zerotensor():
        flat = flat.clone()  # zeros of a gradient that have no memory
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def write(x: Tensor, data: bytes) -> None:
    """Fill `x` with what `bytes_of` made, in place and unseen by autograd."""
    if x.is_contiguous() and not (x.is_neg() or x.is_conj()):
        ctypes.memmove(x.data_ptr(), data, len(data))
    else:
        # unlike that of `x.detach()`, its count of writes is not that of `x`
        x.data.copy_(torch.frombuffer(bytearray(data), dtype=x.dtype).view(x.shape))


def reducing(dtype: torch.dtype, op: Any) -> Callable[[list[bytes]], bytes]:
    """Return a function that reduces all ranks' elements, given in the order of the ranks."""

    def merge(bodies: list[bytes]) -> bytes:
        if not any(bodies):
            return b""  # no elements, which frombuffer refuses
        rows = torch.frombuffer(bytearray(b"".join(bodies)), dtype=dtype).view(len(bodies), -1)
        if op == dist.ReduceOp.SUM:
            return bytes_of(rows.sum(0, dtype=dtype))
        return bytes_of(rows.amin(0) if op == dist.ReduceOp.MIN else rows.amax(0))

    return merge
