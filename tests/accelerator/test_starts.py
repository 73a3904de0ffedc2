"""How ranks come to their devices, and what is said of one that waits for others on its device."""

from __future__ import annotations

import re
import socket
import subprocess
import sys

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
    assert f"{REFUSED} `autoddp run --nproc 2 {path}`" in run.err
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


SKIPPED = """
import autoddp
net = mlp().to(D)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number, (a, b) in enumerate(DataLoader(data, 16)):
    loss = F.cross_entropy(net(a.to(D)), b.to(D))
    optimizer.zero_grad()
    if number != 1 or not autoddp.rank():
        loss.backward()
    else:
        loss.backward()  # elsewhere, by the same sums: no backend could tell
    optimizer.step()
print(loss.item())
"""


def test_ranks_that_part_where_nobody_waits_are_told_where(tmp_path):
    """What was passed by is held against rank 0's at the next meeting, and named by its line."""
    path = jobs.script(HEAD + SKIPPED, tmp_path)
    run = jobs.ranks(path, tmp_path, "--hang-timeout", "0")
    assert run.code == 1
    assert re.search(
        r"rank 1 is in «backward of .* on simulated at job.py:\d+» where rank 0 is in «backward of",
        run.err,
    )


@pytest.mark.parametrize(("each", "connected"), [("1", 1), ("2", 0)])
def test_a_rank_with_one_device_connects_it_before_the_script(each, connected, tmp_path):
    """What cannot be connected is an error at the start, not one of the first backward."""
    path = jobs.script("import torch\nprint(torch.simulated.native.connected())\n", tmp_path)
    run = jobs.ranks(path, tmp_path, "--gpus-per-rank", each)
    assert run.out == f"{connected}\n", run.err


ANY = """
D = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
net = mlp().to(D)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for a, b in DataLoader(data, 16):
    step(net, optimizer, a.to(D), b.to(D))
"""
HIDDEN = {"SIMULATED_VISIBLE_DEVICES": ""}


def two_nodes(path, folder, *settings):
    """What launchers of two nodes, of one rank each, say and end with, each by its own settings."""
    if jobs.lacking():
        pytest.skip(jobs.lacking())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = (
        f"-m autoddp run -n 1 --nnodes 2 --master-addr 127.0.0.1 --master-port {port} --node-rank"
    )
    nodes = [
        subprocess.Popen(
            [sys.executable, *command.split(), str(node), path],
            env=jobs.environ(own),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node, own in enumerate(settings)
    ]
    try:
        return [(*node.communicate(timeout=240), node.returncode) for node in nodes]
    finally:
        for node in nodes:
            node.kill()


def test_nodes_of_which_one_has_no_device_are_refused(tmp_path):
    """A script that asks what there is would get two answers."""
    path = jobs.script(HEAD + ANY, tmp_path)
    for out, err, code in two_nodes(path, tmp_path, {}, HIDDEN):
        assert (out, code) == ("", 2), err
        here, there = "CPUs (no GPU here)", "1 simulated device (simccl)"
        assert f"what a rank computes on is {here} on node 1 and {there} on node 0;" in err


def test_devices_that_are_hidden_on_all_nodes_leave_cpus(tmp_path):
    """What is said where they are refused."""
    path = jobs.script(HEAD + ANY, tmp_path)
    (out, err, code), (_, err2, code2) = two_nodes(path, tmp_path, HIDDEN, HIDDEN)
    assert (code, code2) == (0, 0), err + err2
    one = jobs.alone(path, tmp_path, **HIDDEN)
    assert [float(x) for x in out.split()] == pytest.approx(
        [float(x) for x in one.out.split()], abs=1e-9
    )
    assert "gloo (no GPU here)" in err
