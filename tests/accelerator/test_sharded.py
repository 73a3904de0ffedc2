"""Sharded parameters on the simulated accelerator: training, and files, are one process's."""

from __future__ import annotations

import pytest
import torch

from tests.accelerator import jobs
from tests.accelerator.test_jobs import HEAD

pytestmark = pytest.mark.slow

TRAINED = """
net = mlp().to(D)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
for a, b in DataLoader(data, batch_size=12):
    step(net, optimizer, a.to(D), b.to(D))
print(nn.utils.clip_grad_norm_(net.parameters(), 0.5).item().__format__(".9f"))
torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, "trained.pt")
torch.save({"net": mlp().to(D).state_dict()}, "made.pt")
kept = torch.load("trained.pt")
print({str(p.device) for p in kept["net"].values()}, {str(p.device) for p in net.parameters()})
"""


def test_training_and_files_are_those_of_one_process(tmp_path):
    path = jobs.script(HEAD + TRAINED, tmp_path)
    want = jobs.alone(path, tmp_path)
    got = jobs.ranks(path, tmp_path, "--parameters", "sharded")
    assert (want.code, got.code) == (0, 0), want.err + got.err
    assert "elements of parameters are sharded" in got.err
    assert want.out == got.out
    assert (want.folder / "made.pt").read_bytes() == (got.folder / "made.pt").read_bytes()
    kept, mine = (
        torch.load(run.folder / "trained.pt", map_location=lambda storage, where: storage)
        for run in (want, got)
    )
    torch.testing.assert_close(mine, kept)
