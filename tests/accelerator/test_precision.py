"""Kernels that sum in another order for few rows: no reason to refuse a proof, compiled or in halves."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs
from tests.accelerator.test_jobs import HEAD
from tests.same import same_run

LOW = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [m for _ in range(6) for m in (nn.Linear(64, 64), nn.ReLU())]
        self.body = nn.Sequential(nn.Linear(20, 64), *layers, nn.Linear(64, 4)).bfloat16()

    def forward(self, x):
        return self.body(x.bfloat16()).float()  # as language models give their logits


net = Net().to(D)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for a, b in DataLoader(data, 24):
    loss = F.cross_entropy(net(a.to(D)), b.to(D))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
"""
COMPILED = """
net = nn.Sequential(mlp(0.2), nn.BatchNorm1d(4), nn.Linear(4, 4)).to(D)
net = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    for a, b in DataLoader(data, 16):
        step(net, optimizer, a.to(D), b.to(D))
"""
JOBS = {"bfloat16": (LOW, 2e-2, "Net"), "compiled": (COMPILED, 1e-9, "OptimizedModule")}


@pytest.mark.parametrize("name", JOBS)
def test_other_sums_for_few_rows(name, tmp_path):
    body, rtol, module = JOBS[name]
    path = jobs.script(HEAD + body, tmp_path)
    want = jobs.alone(path, tmp_path, SIMULATED_ALGORITHMS="1")
    assert want.code == 0, want.err
    got = jobs.ranks(path, tmp_path, SIMULATED_ALGORITHMS="1")
    same_run(want, got, rtol)
    assert f"split: {module}" in got.err
