"""BatchNorm over ranks with SyncBatchNorm's kernels, and local statistics without them.

The kernels are CUDA's. Here they are written for the CPU, as torch's documentation of SyncBatchNorm
defines them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autoddp.view import batch_norm
from autoddp.view.batch_norm import Normalize, stats_of
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
    """Simulate SyncBatchNorm's kernels on this device."""
    library = torch.library.Library("aten", "IMPL")
    kernels = zip(
        batch_norm.KERNELS, (stats, gather, elemt, backward_reduce, backward_elemt), strict=True
    )
    for name, kernel in kernels:
        library.impl(name, kernel, "CPU")
    batch_norm.has_kernels.cache_clear()
    assert batch_norm.has_kernels("cpu")
    return library


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
    """The output, running statistics, and gradients of input, weight and bias."""
    weight, bias = (torch.arange(1.0, 4.0) * k for k in (1, 0.1))
    kept = torch.zeros(3), torch.ones(3)
    leaves = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    out = function(*leaves, kept)
    (out**3).sum().backward()
    return [out.detach(), leaves[0].grad, *kept, leaves[1].grad, leaves[2].grad]


@pytest.mark.parametrize("nproc", [2, 3])
def test_sync_kernels_compute_the_statistics_of_the_batch(nproc):
    found = run_ranks(_by_kernels, nproc)
    assert not any(any(said) for said in found), found


# mean and deviation of the values
CASES = {"zero": (0.0, 1.0), "near": (5.0, 1.0), "far": (1e4, 1.0), "constant": (3.0, 0.0)}


@pytest.mark.parametrize("case", CASES)
def test_float32_statistics_are_exact_up_to_rounding(case):
    at, wide = CASES[case]
    torch.manual_seed(0)
    x = torch.randn(16, 8, 40, 40) * wide + at
    var, mean = torch.var_mean(x.double(), (0, 2, 3), correction=0)
    found, invstd = stats_of(x, 1e-5)
    torch.testing.assert_close(found.double(), mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(invstd.double(), torch.rsqrt(var + 1e-5), rtol=3e-6, atol=0)
