"""A compiled model on a device whose kernels sum few rows in another order, which runs eagerly."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs
from tests.accelerator.test_jobs import HEAD
from tests.support.same import same_run

pytestmark = pytest.mark.slow

COMPILED = """
net = nn.Sequential(mlp(0.2), nn.BatchNorm1d(4), nn.Linear(4, 4)).to(D)
net = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    for a, b in DataLoader(data, 16):
        step(net, optimizer, a.to(D), b.to(D))
"""


def test_a_compiled_model_with_batchnorm_and_dropout(tmp_path):
    path = jobs.script(HEAD + COMPILED, tmp_path)
    want = jobs.alone(path, tmp_path, SIMULATED_ALGORITHMS="1")
    assert want.code == 0, want.err
    got = jobs.ranks(path, tmp_path, SIMULATED_ALGORITHMS="1")
    same_run(want, got, 1e-9)
    assert "Sequential runs eagerly" in got.err
