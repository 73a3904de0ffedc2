"""Compare a sharded tensor with the whole batch: values, dtypes, shapes, gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from autoddp.view import ShardedTensor, ShardSizes, View, full
from autoddp.view.redistribute import rows_of


class Counting(View):
    """A view that remembers the names of the operations that gathered."""

    def __init__(self, group: Any) -> None:
        super().__init__(group, "whole")
        self.names: list[str] = []

    def gathered(self, name: str, size: int) -> None:
        self.names.append(name)


def by_rows(x: Tensor, cuts: ShardSizes, at: int = 0) -> ShardedTensor:
    """Shard `x`, which every rank holds; the gradient reaches `x`."""
    return ShardedTensor(rows_of(x * 1 if x.requires_grad else x, cuts, at), cuts, at)


def copy(x: Any) -> Any:
    """Copy values; tensors become new leaves."""
    if type(x) is not Tensor:
        return x
    return x.detach().clone().requires_grad_(x.requires_grad)


def difference(want: Any, got: Any, rtol: float = 1e-9) -> str | None:
    """Describe the first difference between the results on the whole and on rows."""
    ours, mine = tree_flatten(want)[0], tree_flatten(tree_map(_whole, got))[0]
    if len(ours) != len(mine):
        return f"{len(mine)} results instead of {len(ours)}"
    found = (_one(a, b, rtol) for a, b in zip(ours, mine, strict=True))
    return next((said for said in found if said), None)


def _whole(x: Any) -> Any:
    """The whole of a sharded tensor, which has the shape that the sharded tensor shows."""
    whole = full(x)
    if isinstance(x, Tensor) and x.shape != whole.shape:
        raise AssertionError(f"shows {tuple(x.shape)}, but holds {tuple(whole.shape)}")
    return whole


def _one(a: Any, b: Any, rtol: float) -> str | None:
    if not isinstance(a, Tensor):
        same = type(a) is type(b) and (a == b or (isinstance(a, float) and a != a and b != b))
        if isinstance(a, float) and isinstance(b, float) and abs(a - b) <= rtol * abs(a):
            same = True
        return None if same else f"{b!r} instead of {a!r}"
    if not isinstance(b, Tensor):
        return f"{type(b).__name__} instead of a tensor"
    if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
        return f"{b.dtype} {tuple(b.shape)} instead of {a.dtype} {tuple(a.shape)}"
    if a.requires_grad != b.requires_grad:
        return f"requires_grad {b.requires_grad} instead of {a.requires_grad}"
    if a.is_quantized:
        a, b = a.dequantize(), b.dequantize()
    a, b = (x.detach().to_dense() if x.layout is not torch.strided else x.detach() for x in (a, b))
    kind = (
        torch.complex128 if a.is_complex() else torch.float64 if a.is_floating_point() else a.dtype
    )
    if not torch.allclose(a.to(kind), b.to(kind), rtol=rtol, atol=rtol, equal_nan=True):
        return f"values {b.flatten()[:3].tolist()} instead of {a.flatten()[:3].tolist()}"
    return None


def wanted(out: Any) -> list[Tensor]:
    """The results that need a gradient."""
    leaves = tree_flatten(tree_map(full, out))[0]
    return [
        x for x in leaves if isinstance(x, Tensor) and x.requires_grad and x.layout is torch.strided
    ]


def loss(out: list[Tensor]) -> Tensor:
    """A number that depends differently on each element."""
    return sum((x.abs() if x.is_complex() else x).nan_to_num().sin().sum() for x in out)  # type: ignore[return-value]


def gradient_difference(
    group: Any, want: Any, got: Any, ours: list[Tensor], mine: list[Tensor], rtol: float = 1e-8
) -> str | None:
    """Describe the first difference of gradients of leaves: `ours` of the whole, `mine` of rows."""
    tops = wanted(want), wanted(got)
    if len(tops[0]) != len(tops[1]):
        return "requires_grad"
    if not tops[0]:
        return None
    a = torch.autograd.grad(loss(tops[0]), ours, allow_unused=True)
    b = torch.autograd.grad(loss(tops[1]), mine, allow_unused=True)
    for place, (x, y) in enumerate(zip(a, b, strict=True)):
        if y is not None:
            y = (
                group.all_reduce(y.detach().to_dense().clone(memory_format=torch.contiguous_format))
                / group.size
            )
        if (x is None) != (y is None) and bool((x if y is None else y).any()):
            return f"gradient of {place}: {y} instead of {x}"  # none and zeros are as good
        if x is not None and y is not None and (said := _one(x.detach().to_dense(), y, rtol)):
            return f"gradient of {place}: {said}"
    return None
