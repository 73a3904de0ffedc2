"""How ranks come to their devices, and what is said of one that waits for others on its device."""

from __future__ import annotations

import re

import pytest

from tests.accelerator import jobs
from tests.accelerator.test_jobs import HEAD

pytestmark = pytest.mark.slow

DECORATED = """
import torch
from autoddp import distributed

device = "simulated" if torch.simulated.is_available() else "cpu"


@distributed(nproc=2)
def main():
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1).to(device)
    for _ in range(3):
        loss = net(torch.ones(4, 3).to(device)).sum()
        net.zero_grad()
        loss.backward()
    return f"{net.weight.grad.sum().item():.3f}"


if __name__ == "__main__":
    print(main())
"""


REFUSED = "main() needs 2 ranks, but this process cannot be forked (simulated is in use); run"


def test_after_a_question_for_the_device_a_call_is_refused(tmp_path):
    """It begins the driver, which no fork can use; the command that is named runs the script."""
    path = jobs.script(DECORATED, tmp_path)
    run = jobs.alone(path, tmp_path, SIMULATED_ASKS="1")
    assert (run.code, run.out) == (1, "")
    assert f"{REFUSED} `autoddp run --nproc 2 --placement sharded {path}`" in run.err
    run = jobs.ranks(path, tmp_path, SIMULATED_ASKS="1")
    assert (run.code, run.out) == (0, "12.000\n"), run.err
    assert "simccl (a simulated device for each rank)" in run.err


def test_without_a_question_ranks_are_forks_of_which_a_second_call_has_none(tmp_path):
    run = jobs.alone(jobs.script(f"{DECORATED}    main()\n", tmp_path), tmp_path)
    assert (run.code, run.out) == (1, "12.000\n"), run.err
    assert "simccl (a simulated device for each rank)" in run.err
    assert REFUSED in run.err


STUCK = """
import time
import autoddp
net = mlp().to(D)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number, (a, b) in enumerate(DataLoader(data, 16)):
    if number == 3 and autoddp.rank():
        time.sleep(60)
    step(net, optimizer, a.to(D), b.to(D))
"""


def test_a_rank_that_waits_on_its_device_is_seen_to_wait(tmp_path):
    """A processor is busy there, and Python is in no call of ours: it reads a value."""
    path = jobs.script(HEAD + STUCK, tmp_path)
    run = jobs.ranks(path, tmp_path, "--hang-timeout", "3", SIMULATED_SPINS="1")
    assert run.code == 1
    assert "the job hangs" in run.err, run.err
    assert re.search(r"missing: rank 1", run.err), run.err
    assert re.search(r"rank 0 .* has waited for \d+ s in «all-reduce of", run.err), run.err
