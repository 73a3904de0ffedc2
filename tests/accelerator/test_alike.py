"""What ranks compute alike, each for itself, stays alike where devices round in their own ways."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs
from tests.accelerator.test_jobs import HEAD
from tests.support.same import same_text

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


BY_HAND = """
net = mlp(0.4).to(D)
for _ in range(10):
    for a, b in DataLoader(data, 24):
        loss = F.cross_entropy(net(a.to(D)), b.to(D))
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        print(f"{loss.item():.12f}")
"""


def test_a_loop_by_hand_averages_before_and_behind_its_choice(tmp_path):
    """Before it, at the end of each backward, and whole batches by a reducer, as they may drift."""
    path = jobs.script(HEAD + BY_HAND, tmp_path)
    want, got = jobs.alone(path, tmp_path), jobs.ranks(path, tmp_path, AUTODDP_PLACEMENT="auto")
    assert (want.code, got.code) == (0, 0), want.err + got.err
    assert "batches are replicated" in got.err
    same_text(want.out, got.out, 1e-9, "stdout")
