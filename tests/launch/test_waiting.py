"""Nodes and ranks that wait for others report which are missing, and why they give up."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from autoddp import launch
from autoddp.errors import BadInput
from autoddp.options import Options
from tests.support.cli import environ
from tests.support.ports import free_port

SOON = 60.0  # seconds, of a machine that is busy; without a word it would be ten minutes


def test_a_missing_node_rank_raises_with_the_fix():
    way = r"give --node-rank 0 to 1, another number on each node \(srun, mpirun and a PyTorchJob"
    with pytest.raises(BadInput, match=rf"^--nnodes is 2 without --node-rank; {way}"):
        launch.prepare(Options(nnodes=2, master_addr="127.0.0.1"))


class Node:
    """`autoddp run` as one of several nodes on this machine, whose lines can be read one by one."""

    def __init__(self, folder, port, node, nnodes=2):
        (folder / "s.py").write_text("print('it ran')\n")
        where = f"--nnodes {nnodes} --node-rank {node} --master-addr 127.0.0.1 --master-port {port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autoddp", "run", "-n", "1", *where.split(), "s.py"],
            cwd=folder,
            env=environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, text):
        """Read stderr up to a line that holds `text`."""
        said = ""
        for line in self.process.stderr:
            if text in line:
                return line
            said += line
        code = self.process.wait(SOON)
        raise AssertionError(f"ended with {code}, without {text!r}; it said: {said}")

    def end(self, seconds=SOON):
        """Exit code, and the rest of stdout and stderr."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        finally:
            self.process.kill()
        return self.process.returncode, out, err


@pytest.mark.cluster
def test_a_node_reports_that_node_0_does_not_answer(tmp_path):
    port = free_port()
    second = Node(tmp_path, port, 1)
    second.until(f"waiting for node 0 to answer at 127.0.0.1:{port} since ")
    first = Node(tmp_path, port, 0)
    assert first.end(240)[:2] == (0, "it ran\n")
    assert second.end()[0] == 0


@pytest.mark.cluster
def test_a_node_0_that_ends_while_it_waits_ends_the_others(tmp_path):
    port = free_port()
    nodes = [Node(tmp_path, port, node, 3) for node in range(2)]
    for node in nodes:
        node.until("waiting for node 2 of 3 since ")
    nodes[0].process.send_signal(signal.SIGINT)
    code, _, err = nodes[1].end()
    assert code == 1
    assert f"node 0 at 127.0.0.1:{port} has ended before all nodes were there" in err
    assert nodes[0].end() == (-signal.SIGINT, "", "")
