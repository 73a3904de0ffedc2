"""The statistics of a rank's rows are those of BatchNorm."""

from __future__ import annotations

import pytest
import torch

from autoddp.view.batch_norm import stats_of

SHAPES = [(7, 3, 5), (7, 3, 5, 4), (1, 2, 9, 9), (3, 2, 4, 3, 5), (5, 3), (4, 1, 1, 1)]
LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: (
        x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    ),
    "strided": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() > 3 else x,
}
# how far from zero, in deviations
CASES = {"around zero": (0.0, 1.0), "beside": (5.0, 1.0), "far": (1e4, 1.0), "constant": (3.0, 0.0)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mean_and_deviation(shape, case, layout):
    at, wide = CASES[case]
    torch.manual_seed(0)
    x = LAYOUTS[layout](torch.randn(shape, dtype=torch.float64) * wide + at)
    over = [d for d in range(x.dim()) if d != 1]
    var, mean = torch.var_mean(x, over, correction=0)
    found, invstd = stats_of(x, 1e-5)
    torch.testing.assert_close(found, mean, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(invstd, torch.rsqrt(var + 1e-5), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_in_float32_they_are_as_near_as_rounding_lets_them(case):
    at, wide = CASES[case]
    torch.manual_seed(0)
    x = torch.randn(16, 8, 40, 40) * wide + at
    var, mean = torch.var_mean(x.double(), (0, 2, 3), correction=0)
    found, invstd = stats_of(x, 1e-5)
    torch.testing.assert_close(found.double(), mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(invstd.double(), torch.rsqrt(var + 1e-5), rtol=3e-6, atol=0)


def test_what_is_not_finite_stays_so():
    x = torch.randn(4, 2, 3, 3)
    x[0, 0, 0, 0] = float("nan")
    mean, invstd = stats_of(x, 1e-5)
    assert mean.isnan().tolist() == [True, False]
    assert invstd.isnan().tolist() == [True, False]
