"""Nodes that come and go: the job starts again with those that are there, and ends as one process does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.cli import ROOT, environ
from tests.test_two_nodes import ADDRESSES, PORT, nodes  # noqa: F401

LATEST = 60  # seconds
HOST = socket.gethostname()
AT = f"--master-addr {ADDRESSES[0]} --master-port {PORT}"
TRAIN = """
import os, sys, time
import torch
import autoddp

os.chdir(sys.argv[1])
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1)).double()
optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(12, 4).double(), torch.randn(12, 1).double())
first, steps = 0, 12
if os.path.exists("last.pt"):
    state = torch.load("last.pt")
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    first = state["step"]
for step in range(first, steps):
    for x, y in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
        loss = ((net(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
    torch.save(state | {"rng": torch.get_rng_state()}, "last.pt")
    if (step, autoddp.world_size()) in [(3, 1), (7, 2)] and sys.argv[2:]:
        print("at", step, flush=True)
        time.sleep(600)  # until the job starts again
torch.save(net.state_dict(), "final.pt")
print("through", flush=True)
"""


class Node:
    """`autoddp run` on a node, in a session of its own."""

    def __init__(self, names, node, options, script):
        command = f"{sys.executable} -m autoddp run -n 1 {options} {AT} {script}"
        self.process = subprocess.Popen(
            f"ip netns exec {names[node]} {command}".split(),
            env=environ({"PYTHONHASHSEED": "0"}),  # no interpreter starts another one
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill()
        self.process.communicate()

    def kill(self, number=signal.SIGKILL):
        """All processes of the session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def says(self, line):
        assert self.process.stdout.readline() == f"{line}\n", self.process.stderr.read()

    def end(self):
        out, err = self.process.communicate(timeout=LATEST)
        return self.process.returncode, out, err


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def test_a_node_comes_and_is_lost(nodes, train, tmp_path, warm):  # noqa: F811
    import torch

    want, got = tmp_path / "want", tmp_path / "got"
    got.mkdir()
    with Node(nodes, 0, "--nnodes 1:2", f"{train} {got} hold") as one:
        plain = warm.run("python", str(train), str(want), folder=want)
        one.says("at 3")
        with Node(nodes, 1, "--nnodes 1:2", f"{train} {got} hold") as two:
            one.says("at 7")
            two.kill()
            code, out, err = one.end()
    assert (code, out, plain.out) == (0, "through\n", "through\n"), err
    for name, value in torch.load(want / "final.pt").items():
        assert torch.allclose(value, torch.load(got / "final.pt")[name], rtol=1e-12, atol=1e-12), name
    lost = f"node 1 ({ADDRESSES[1]}, {HOST}) is lost: its launcher has ended without a word"
    told = [line for line in err.splitlines() if "DataLoader" not in line and "Sequential" not in line]
    assert [line.removeprefix("[autoddp] ") for line in told] == [
        f"waiting for 1:2 nodes at {ADDRESSES[0]}:{PORT}",
        "1 ranks on 1 node, gloo (no GPU here), global view",
        "other nodes are there: the job starts again on 2 nodes",
        "2 ranks on 2 nodes, gloo (no GPU here), global view",
        lost,
        "the job starts again on 1 node",
        "1 ranks on 1 node, gloo (no GPU here), global view",
    ]
