"""The scripts of `python -m tests.gpu`, on these tests' accelerator: two ranks are one process."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs
from tests.gpu.checks import CHECKS, PASSED, same
from tests.gpu.machine import SCRIPTS

pytestmark = pytest.mark.slow

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
D = "simulated"
x = torch.randn(72, 20)
data = TensorDataset(x, x[:, :4].argmax(1))


def mlp(p=0.0):
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 4))


def step(net, optimizer, a, b):
    loss = F.cross_entropy(net(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}")
"""
HERE = [check for check in CHECKS if not check.direct and check.name != "equal graphs"]


@pytest.mark.parametrize("check", HERE, ids=lambda check: check.name.replace(" ", "_"))
def test_ranks_give_what_one_process_gives(check, tmp_path):
    """The device sums few rows in another order, as cuBLAS and cuDNN do."""
    name, *args = check.name.split()
    path, settings = str(SCRIPTS / f"{name}.py"), {"SIMULATED_ALGORITHMS": "1", "TINY": "1"}
    want = jobs.alone(path, tmp_path, *args, **settings)
    got = jobs.ranks(path, tmp_path, arguments=tuple(args), **settings)
    assert (want.code, got.code) == (0, 0), want.err + got.err
    state, seen = same(want, got, check.rtol)
    assert state == PASSED, seen
