"""What ranks compute alike, each for itself, stays alike where devices round in their own ways."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs
from tests.accelerator.test_jobs import HEAD

pytestmark = pytest.mark.slow

DRIFT = """
import sys
import autoddp

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()
        self.register_buffer("codes", torch.ones(5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        return self.body(x) * self.codes.mean()


net, off = Net().to(D), float(sys.argv[1])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number, (a, b) in enumerate(DataLoader(data, 24)):
    net.codes.add_(off * autoddp.rank())  # as sums in an order of their own would
    step(net, optimizer, a.to(D), b.to(D))
    assert (net.codes == 1).all(), f"step {number} of rank {autoddp.rank()}: {net.codes}"
"""


def test_buffers_do_not_drift_apart(tmp_path):
    path = jobs.script(HEAD + DRIFT, tmp_path)
    got = jobs.ranks(path, tmp_path, arguments=("1e-12",))
    assert got.code == 0, got.err
    assert "is taken" not in got.err


UNSEEDED = """
torch.simulated.init()
net = mlp(0.4).to(D)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for a, b in DataLoader(data, 16):
    step(net, optimizer, a.to(D), b.to(D))
print(torch.rand(3, device=D).tolist())
"""


def test_ranks_draw_alike_on_devices_that_nobody_seeded(tmp_path):
    """Their generators begin with numbers of the system's: rank 0's are all ranks'."""
    path = jobs.script(HEAD.replace("torch.manual_seed(0)", "") + UNSEEDED, tmp_path)
    got = jobs.ranks(path, tmp_path)
    assert got.code == 0, got.err
    assert len(got.out.splitlines()) == 6
