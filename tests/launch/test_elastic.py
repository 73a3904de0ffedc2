"""Nodes that come and go: autoddp names the torchrun command, and runs under torchrun."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest

from autoddp import cli
from autoddp.errors import BadInput
from autoddp.process.watching.progress import _descendants
from tests.support.cli import ROOT, environ

LATEST = 120  # seconds
# a store that torch 2.11 to 2.15 share between rounds is not told to a node that comes later
APART = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
TRAIN = """
import os, sys, time
import torch
import autoddp

os.chdir(sys.argv[1])
torch.manual_seed(0)
net = torch.nn.Sequential(\\
torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1)).double()
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
        while True:  # until the job starts again
            time.sleep(0.1)
            net(x).sum().item()
torch.save(net.state_dict(), "final.pt")
print("through", flush=True)
"""


class Node:
    """`torchrun --nnodes 1:2 -m autoddp run` as a node of this machine."""

    def __init__(self, port, *command):
        torchrun = (
            "-m torch.distributed.run --nnodes 1:2 --nproc-per-node 1 --rdzv-backend c10d "
            f"--rdzv-conf last_call_timeout=1 --rdzv-endpoint 127.0.0.1:{port} "
            "--local-addr 127.0.0.1 --max-restarts 3 --monitor-interval 0.1 -m autoddp run"
        )
        self.process = subprocess.Popen(
            [sys.executable, *torchrun.split(), *map(str, command)],
            env=environ({APART: "1"}),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        """Kill torchrun and its rank, which has a session of its own."""
        for pid in (self.process.pid, *_descendants(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def says(self, line):
        assert self.process.stdout.readline() == f"{line}\n", self.process.stderr.read()


@pytest.mark.cluster
def test_under_torchrun_a_node_comes_and_goes(tmp_path, warm):
    import torch

    script, want, got = tmp_path / "train.py", tmp_path / "want", tmp_path / "got"
    script.write_text(TRAIN)
    got.mkdir()
    plain = warm.run("python", str(script), str(want), folder=want)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Node(port, script, got, "hold") as one:
        one.says("at 3")
        with Node(port, script, got, "hold") as two:
            one.says("at 7")
            two.process.terminate()
            out, err = one.process.communicate(timeout=LATEST)
    assert (one.process.returncode, out, plain.out) == (0, "through\n", "through\n"), err
    for name, value in torch.load(want / "final.pt").items():
        assert torch.allclose(value, torch.load(got / "final.pt")[name], rtol=1e-12, atol=1e-12), (
            name
        )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "1:2",
            "--nnodes is 1:2, but nodes that come and go need torchrun; run on each node "
            f"{APART}=1 torchrun --nnodes 1:2 --nproc-per-node RANKS --rdzv-backend c10d "
            "--rdzv-endpoint HOST:PORT -m autoddp run SCRIPT",
        ),
    ],
)
def test_a_range_of_nodes_names_the_torchrun_command(given, says):
    with pytest.raises(BadInput) as error:
        cli.parse(["run", "--nnodes", given, "train.py"])
    assert str(error.value) == says
