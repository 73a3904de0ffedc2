"""BatchNorm over ranks: what it keeps and launches, beside SyncBatchNorm, whose kernels it may use.

These kernels are CUDA's. Here they are written down once more for the CPU, as torch's documentation
of SyncBatchNorm defines them, so that both run; on other paths no kernel is replaced.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules._functions import SyncBatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from autoddp.view import batch_norm
from autoddp.view.batch_norm import Normalize
from tests.support.ranks import run_ranks
from tests.view.compare import difference

OVER = [0, 2, 3]
EPS, MOMENTUM = 1e-5, 0.1


def beside(x: Tensor) -> Tensor:
    return x.view(1, -1, 1, 1)


def stats(x, eps):
    var, mean = torch.var_mean(x, OVER, correction=0)
    return mean, torch.rsqrt(var + eps)


def gather(x, means, invstds, running_mean, running_var, momentum, eps, counts):
    share = (counts / counts.sum()).unsqueeze(1)
    mean = (share * means).sum(0)
    var = (share * (invstds**-2 - eps + (means - mean) ** 2)).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * counts.sum() / (counts.sum() - 1), momentum)
    return mean, torch.rsqrt(var + eps)


def elemt(x, weight, bias, mean, invstd, eps):
    return (x - beside(mean)) * beside(invstd * weight) + beside(bias)


def backward_reduce(g, x, mean, invstd, weight, *needs):
    sum_g, sum_gx = g.sum(OVER), (g * (x - beside(mean))).sum(OVER)
    return sum_g, sum_gx, sum_gx * invstd, sum_g.clone()


def backward_elemt(g, x, mean, invstd, weight, sum_g, sum_gx, counts):
    count = counts.sum()
    through = (x - beside(mean)) * beside(invstd**2 * sum_gx / count)
    return (g - beside(sum_g / count) - through) * beside(invstd * weight)


def add_kernels() -> Any:
    """A device that has SyncBatchNorm's own kernels: this one."""
    library = torch.library.Library("aten", "IMPL")
    kernels = zip(
        batch_norm.KERNELS, (stats, gather, elemt, backward_reduce, backward_elemt), strict=True
    )
    for name, kernel in kernels:
        library.impl(name, kernel, "CPU")
    batch_norm.has_kernels.cache_clear()
    assert batch_norm.has_kernels("cpu")
    return library


class Count(TorchDispatchMode):
    """How many operators there were."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # it launches nothing, and torch up to 2.8 calls it where a saved tensor is unpacked
        self.number += func is not torch.ops.aten.detach.default
        return func(*args, **(kwargs or {}))


def measured(function: Any, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[int, int, int]:
    """Operators forward and backward, and bytes that are kept between them beside the weights."""
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    x, count = x.clone().requires_grad_(), Count()
    with count, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = function(x, weight, bias)
        forward = count.number
        out.backward(torch.ones_like(out))
    return forward, count.number - forward, sum(kept.values())


def _costs(group: Any, dtype: torch.dtype, kernels: bool) -> Any:
    x = torch.randn(8, 16, 14, 14).to(dtype)
    weight, bias = torch.ones(16, requires_grad=True), torch.zeros(16, requires_grad=True)
    kept = torch.zeros(16), torch.ones(16)

    def ours(*given: Tensor) -> Tensor:
        return Normalize.apply(*given, (*kept, MOMENTUM), EPS, group)

    def torchs(*given: Tensor) -> Tensor:
        return SyncBatchNorm.apply(*given, *kept, EPS, MOMENTUM, group.pg, group.size)

    found = None if kernels else measured(ours, x, weight, bias)
    library = add_kernels()
    found = found or measured(ours, x, weight, bias)
    theirs = measured(torchs, x.float(), weight, bias)
    del library
    return found, theirs, x.nbytes


WAYS = {
    "SyncBatchNorm's kernels": (torch.float32, True),
    "BatchNorm's kernels": (torch.float32, False),
    "BatchNorm's kernels, bfloat16": (torch.bfloat16, False),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_more_is_kept_and_twice_as_much_launched_at_most(way):
    dtype, kernels = WAYS[way]
    for ours, theirs, size in run_ranks(_costs, 2, dtype, kernels):
        print(
            f"operators forward, backward; bytes kept: {ours}, SyncBatchNorm {theirs}, input {size}"
        )
        assert ours[0] <= 2 * theirs[0]
        assert ours[1] <= 2 * theirs[1]
        # what it keeps but the input, in float32
        besides = theirs[2] - size * (4 // dtype.itemsize)
        assert size <= ours[2] <= size + besides


def _by_kernels(group: Any) -> list[str | None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    library, found = add_kernels(), []
    for total in (7, 4):
        for layout in (torch.contiguous_format, torch.channels_last):
            whole = (torch.randn(total, 3, 4, 5) * 3 + 2).to(memory_format=layout)
            start, stop = (group.rank * total // group.size, (group.rank + 1) * total // group.size)
            want = _one(
                whole, lambda x, w, b, kept: F.batch_norm(x, *kept, w, b, True, MOMENTUM, EPS)
            )
            got = _one(
                whole[start:stop],
                lambda x, w, b, kept: Normalize.apply(x, w, b, (*kept, MOMENTUM), EPS, group),
            )
            sums = [group.all_reduce(got.pop()), group.all_reduce(got.pop())]
            rows = [x[start:stop] for x in want[:2]]
            found.append(difference([*rows, *want[2:]], [*got, *sums[::-1]]))
    del library
    return found


def _one(x: Tensor, function: Any) -> list[Tensor]:
    """The output, the input's gradient, what is kept, the gradients of weight and bias."""
    weight, bias = (torch.arange(1.0, 4.0) * k for k in (1, 0.1))
    kept = torch.zeros(3), torch.ones(3)
    leaves = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    out = function(*leaves, kept)
    (out**3).sum().backward()
    return [out.detach(), leaves[0].grad, *kept, leaves[1].grad, leaves[2].grad]


@pytest.mark.parametrize("nproc", [2, 3])
def test_by_its_kernels_numbers_are_those_of_the_batch(nproc):
    found = run_ranks(_by_kernels, nproc)
    assert not any(any(said) for said in found), found
