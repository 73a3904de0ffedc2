"""Nodes that come and go: the job starts again with those there, and ends as one process does."""

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
from autoddp.launch import schedulers
from autoddp.options import Options
from tests.launch.test_two_nodes import ADDRESSES, PORT, nodes  # noqa: F401
from tests.support.cli import ROOT, environ

pytestmark = pytest.mark.cluster

LATEST = 60  # seconds
HOST = socket.gethostname()
AT = f"--master-addr {ADDRESSES[0]} --master-port {PORT}"
TRAIN = """
import ctypes, os, sys, time
import torch
import autoddp

os.chdir(sys.argv[1])
libc = ctypes.CDLL(None)
torch.manual_seed(0)
net = torch.nn.Sequential(\
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
    if step == 5 and autoddp.rank() == 1 and libc.mkdir(b"killed", 0o755) == 0:
        libc.kill(libc.getpid(), 9)
    if (step, autoddp.world_size()) in [(3, 1), (7, 2)] and sys.argv[2:]:
        print("at", step, flush=True)
        time.sleep(600)  # until the job starts again
torch.save(net.state_dict(), "final.pt")
print("through", flush=True)
"""


LOOP = """
import ctypes, os, sys, time
import autoddp

os.chdir(sys.argv[1])
libc = ctypes.CDLL(None)
if autoddp.world_size() == 2:
    open("two", "w").close()
    print("on 2 nodes", flush=True)
    if autoddp.rank() == 1 and sys.argv[2:]:
        libc.kill(libc.getpid(), 9)
while autoddp.world_size() == 2 or not os.path.exists("two"):
    time.sleep(0.1)  # until the job starts again
print("through", flush=True)
"""


# what takes most of the time comes before the line at which the launcher is wanted
START = "import autoddp.cli, autoddp.launch.agent as _; input(); autoddp.cli.main()"


class Node:
    """`autoddp run` on a node, in a session of its own, once it is to go."""

    def __init__(self, node, names, options, script):
        command = f"run -n 1 {options} {AT} {script}"
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", names[node], sys.executable, "-c", START, *command.split()],
            # as `autoddp run` has them
            env=environ({"PYTHONHASHSEED": "0", "TORCH_CPP_LOG_LEVEL": "ERROR"}),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

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


def test_a_node_comes_has_a_rank_killed_and_is_lost(nodes, train, tmp_path, warm):  # noqa: F811
    import torch

    want, got = tmp_path / "want", tmp_path / "got"
    got.mkdir()
    given = nodes, "--nnodes 1:2 --max-restarts 1", f"{train} {got} hold"
    with Node(0, *given) as one, Node(1, *given) as two:
        one.go()
        plain = warm.run("python", str(train), str(want), folder=want)
        one.says("at 3")
        two.go()
        one.says("at 7")
        two.kill()
        code, out, err = one.end()
    assert (code, out, plain.out) == (0, "through\n", "through\n"), err
    for name, value in torch.load(want / "final.pt").items():
        assert torch.allclose(value, torch.load(got / "final.pt")[name], rtol=1e-12, atol=1e-12), (
            name
        )
    lost = f"node 1 ({ADDRESSES[1]}, {HOST}) is lost: its launcher has ended without a word"
    told = [
        line for line in err.splitlines() if "DataLoader" not in line and "Sequential" not in line
    ]
    assert [line.removeprefix("[autoddp] ") for line in told] == [
        f"waiting for 1:2 nodes at {ADDRESSES[0]}:{PORT}",
        "1 ranks on 1 node, gloo (no GPU here), global view",
        "other nodes are there: the job starts again on 2 nodes",
        "2 ranks on 2 nodes, gloo (no GPU here), global view",
        (
            f"rank 1 on node 1 ({ADDRESSES[1]}, {HOST}) was killed by SIGKILL (signal 9); "
            "its log is there"
        ),
        "the job is run again (1 of 1)",
        "2 ranks on 2 nodes, gloo (no GPU here), global view",
        lost,
        "the job starts again once torch has missed it for 15 s",
        "the job starts again on 1 node",
        "1 ranks on 1 node, gloo (no GPU here), global view",
    ]


@pytest.fixture
def loop(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    return f"{path} {tmp_path}"


def test_a_node_that_a_signal_ends_leaves_the_job_to_the_others(nodes, loop):  # noqa: F811
    given = nodes, "--nnodes 1:2", loop
    with Node(0, *given) as one, Node(1, *given) as two:
        one.go()
        two.go()
        one.says("on 2 nodes")
        two.process.send_signal(signal.SIGTERM)
        code, out, err = one.end()
        assert two.end()[0] == 128 + signal.SIGTERM
    assert (code, out) == (0, "through\n"), err
    lost = f"node 1 ({ADDRESSES[1]}, {HOST}) is lost: its launcher was ended by SIGTERM\n"
    assert f"[autoddp] {lost}" in err
    assert "[autoddp] the job starts again on 1 node\n" in err


@pytest.mark.parametrize("left", [(0, 1), (1, 0)], ids=["the other", "the host"])
def test_a_rank_that_dies_ends_the_job_though_a_node_has_restarts_left(nodes, loop, left):  # noqa: F811
    given = [(nodes, f"--nnodes 1:2 --max-restarts {most}", f"{loop} kill") for most in left]
    with Node(0, *given[0]) as one, Node(1, *given[1]) as two:
        one.go()
        two.go()
        (code, _, err), (code2, _, err2) = one.end(), two.end()
    assert (code, code2) == (137, 137), err + err2
    assert f"rank 1 on node 1 ({ADDRESSES[1]}, {HOST}) was killed by SIGKILL (signal 9)" in err
    assert "[autoddp] rank 1 was killed by SIGKILL (signal 9);" in err2
    assert "run again" not in err + err2


def test_the_job_ends_with_the_node_that_hosts_its_store(nodes, loop):  # noqa: F811
    given = nodes, "--nnodes 1:2 --max-restarts 2", loop
    with Node(0, *given) as one, Node(1, *given) as two:
        one.go()
        two.go()
        one.says("on 2 nodes")
        one.kill()
        code, _, err = two.end()
    assert code == 1, err
    assert err.splitlines()[-1] == (
        f"[autoddp] node 0 ({ADDRESSES[0]}, {HOST}) is lost: its launcher has ended without a "
        "word; the job, whose store it hosts, ends with it"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--nnodes 2:1", "--nnodes is 2:1; the smaller number comes first, as in 1:2"),
        ("--nnodes 0:2", "--nnodes is 0:2; a job has at least 1 node"),
        ("--nnodes 2:0", "--nnodes is 0; a job has at least 1 node"),
        ("--nnodes 1:", "--nnodes is '1:'; it takes a whole number, or two as MIN:MAX"),
        ("--nnodes a:b", "--nnodes is 'a:b'; it takes a whole number, or two as MIN:MAX"),
        ("--nnodes 1:2:3", "--nnodes is '1:2:3'; it takes a whole number, or two as MIN:MAX"),
        (
            "--nnodes 1:2 --node-rank 1",
            "where nodes get their numbers as they come; leave --node-rank out",
        ),
        ("--nnodes 1:2", "--nnodes is 1:2 without --master-addr; give the address of node 0"),
    ],
)
def test_what_is_no_range_is_said(line, says, train):
    with pytest.raises(BadInput) as error:
        cli.parse(["run", *line.split(), str(train)])()
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_scheduler_knows_all_nodes():
    pods = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"}
    with pytest.raises(
        BadInput, match="--nnodes is 1:2, but the cluster says RANK 0 of WORLD_SIZE 2"
    ):
        schedulers.settle(pods, Options(nnodes=2, min_nodes=1))
