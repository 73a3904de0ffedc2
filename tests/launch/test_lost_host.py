"""Two nodes, one of which loses its network, all its processes, or one rank."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from tests.launch.test_two_nodes import Job, nodes, sh  # noqa: F401
from tests.support.cli import fork_python

pytestmark = pytest.mark.cluster

LATEST = 60  # seconds until the survivors have ended
HOST = socket.gethostname()
TRAIN = """
import ctypes, os, sys
import torch
import autoddp

os.chdir(sys.argv[1])
libc = ctypes.CDLL(None)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 1)).double()
optimizer = torch.optim.SGD(net.parameters(), 0.01)
data = torch.utils.data.TensorDataset(torch.randn(16, 4).double(), torch.randn(16, 1).double())
start, last = 0, int(sys.argv[2])
if os.path.exists("last.pt"):
    state = torch.load("last.pt")
    net.load_state_dict(state["net"])
    start = state["step"]
    print("resumed at", start, flush=True)
for step in range(start, last):
    for x, y in torch.utils.data.DataLoader(data, batch_size=8):
        loss = ((net(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if step % 4 == 3 and last < 100:
        torch.save({"net": net.state_dict(), "step": step + 1}, "last.pt")
    if step == 3:
        print("ready", flush=True)
    if step == 5 and autoddp.rank() == 2 and sys.argv[3:] and libc.mkdir(b"killed", 0o755) == 0:
        libc.kill(libc.getpid(), 9)
torch.save(net.state_dict(), "final.pt")
"""


@pytest.fixture
def train(tmp_path):
    """The script and its first argument."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path, tmp_path


def lose_network(names, node):
    """Drop all packets of a node."""
    links = sh(f"ip -n {names[node]} -o link show type veth").stdout
    sh(f"ip -n {names[node]} link set {links.split(': ')[1].partition('@')[0]} down")
    return lambda: sh(f"ip -n {names[node]} link set {links.split(': ')[1].partition('@')[0]} up")


def lose_power(names, node):
    """Kill all processes of a node."""
    for pid in sh(f"ip netns pids {names[node]}").stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    return lambda: None


@pytest.mark.parametrize(
    ("lose", "node"),
    [
        (lose_network, 1),
        (lose_power, 0),
    ],
    ids=["network", "power-of-node-0"],
)
def test_the_other_node_reports_a_lost_node(nodes, train, tmp_path, lose, node):  # noqa: F811
    words = ("--hang-timeout", "4", "--max-restarts", "2", *train, 1000000)
    job = Job(nodes, tmp_path, *words, nprocs=(1, 1))
    mend = None
    try:
        job.nodes[0].until("ready\n")
        mend = lose(nodes, node)
        left = job.nodes[1 - node]
        _, err = left.communicate(LATEST)
        assert left.returncode == 1, err
        assert f"[autoddp] node {node} ({HOST}) is lost: it does not answer\n" in err
        assert "Traceback" not in err
        assert "restarting" not in err
    finally:
        if mend is not None:
            mend()
        job.end()


def test_a_rank_killed_on_one_node_restarts_the_job_on_both(nodes, train, tmp_path):  # noqa: F811
    import torch

    first, second = Job(nodes, tmp_path, "--max-restarts", "1", *train, 12, "kill").end()
    assert (first.rc, second.rc) == (0, 0), first.err + second.err
    assert first.out == "ready\nresumed at 4\n"
    assert f"rank 2 on node 1 ({HOST}) was killed by SIGKILL (signal 9)" in first.err
    assert "[autoddp] rank 2 was killed by SIGKILL (signal 9)" in second.err
    for done in (first, second):
        assert "Traceback" not in done.err
        assert done.err.count("restarting the job (1 of 1)") == 1
    again = tmp_path / "again"
    again.mkdir()
    done = fork_python(train[0], again, 12)
    assert done.rc == 0, done.err
    plain = torch.load(again / "final.pt")
    for name, value in torch.load(tmp_path / "final.pt").items():
        assert torch.allclose(value, plain[name], rtol=1e-12, atol=1e-12), name
