"""The strides of a single row, which torch leaves open: those that several rows would have."""

from __future__ import annotations

import torch
from torch import Tensor

from autoddp.view.aliases import memory_of


def shares_memory(out: Tensor, local: Tensor) -> bool:
    """Return whether an inference tensor, of which autograd keeps nothing, is a view of another."""
    return out.is_inference() and memory_of(out) == memory_of(local)


def with_outermost_stride(before: Tensor, view: Tensor) -> Tensor:
    """Return a view of a single row with the strides of several rows.

    torch gives a dimension of size 1 any stride. If it is not the largest, kernels take the tensor
    for another layout, and draw in another order than in one process.
    """
    if view.layout is not torch.strided or len(before) != 1 or before.stride(0) < _span(before):
        return view
    span = _span(view)
    if view.stride(0) >= span:
        return view
    return view.as_strided(view.shape, (span, *view.stride()[1:]))


def with_row_stride(out: Tensor, dim: int, like: Tensor) -> Tensor:
    """Return a new result of a single row with the row's stride that several rows would have.

    The row is as wide as the dimensions that lie inside of it in `like`, the argument if the
    function keeps its layout; torch may compute a single row in another layout, as all of them are
    contiguous, or with the stride of a row of which the argument is a part.
    """
    if out.layout is not torch.strided or not out.numel():
        return out
    like = like if like.shape == out.shape and like.layout is torch.strided else out
    row, strides = like.stride(dim), [*out.stride()]
    inside = (k for k, n in enumerate(out.shape) if n > 1 and like.stride(k) < row)
    strides[dim] = max((strides[k] * out.shape[k] for k in inside), default=min(row, 1))
    return out if strides[dim] == out.stride(dim) else out.as_strided(out.shape, strides)


def _span(x: Tensor) -> int:
    """Return the number of elements in memory from one row to the next."""
    return max((n * step for n, step in zip(x.shape[1:], x.stride()[1:], strict=True)), default=1)
