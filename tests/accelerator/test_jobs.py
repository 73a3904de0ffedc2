"""What people do on a GPU, on these tests' accelerator: N ranks give the numbers of one process."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs
from tests.support.same import same_run

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
AMP = """
net = mlp().to(D)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(D)
for a, b in DataLoader(data, 16):
    with torch.autocast(D, dtype=torch.bfloat16):
        loss = F.cross_entropy(net(a.to(D)), b.to(D))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    print(f"{loss.item():.6f} {norm.item():.6f} {scaler.get_scale()}")
"""
DEFAULT = """
torch.set_default_device(D)
net = nn.Sequential(mlp(0.3), nn.BatchNorm1d(4))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for a, b in DataLoader(data, 16, shuffle=True, generator=torch.Generator(D).manual_seed(1)):
    step(net, optimizer, a.to(D), b.to(D))
"""
PREFETCH = """
net = mlp().to(D)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
side = torch.Stream(device=D)


def fetch(batches):
    found = next(batches, None)
    with side:
        return found and [v.to(D, non_blocking=True) for v in found]


batches = iter(DataLoader(data, 16))
following = fetch(batches)
while following is not None:
    now = torch.accelerator.current_stream()
    now.wait_stream(side)
    a, b = following
    for v in (a, b):
        v.record_stream(now)
    following = fetch(batches)
    step(net, optimizer, a, b)
"""
COMPILED = """
net = torch.compile(nn.Sequential(mlp(0.2), nn.BatchNorm1d(4)).to(D), backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for a, b in DataLoader(data, 16):
    step(net, optimizer, a.to(D), b.to(D))
"""
JOBS = {
    "autocast_and_scaler": (AMP, 1e-2),
    "default_device": (DEFAULT, 1e-9),
    "prefetcher": (PREFETCH, 1e-9),
    "compiled": (COMPILED, 1e-9),
}


@pytest.mark.parametrize("name", JOBS)
def test_ranks_give_what_one_process_gives(name, tmp_path):
    """The device sums few rows in another order, as cuBLAS and cuDNN do."""
    body, rtol = JOBS[name]
    path = jobs.script(HEAD + body, tmp_path)
    want = jobs.alone(path, tmp_path, SIMULATED_ALGORITHMS="1")
    assert want.code == 0, want.err
    same_run(want, jobs.ranks(path, tmp_path, SIMULATED_ALGORITHMS="1"), rtol)
