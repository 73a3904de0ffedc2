"""Nodes and ranks that wait for others report which are missing, and why they give up."""

from __future__ import annotations

import os
import signal

import pytest

from autoddp import launch
from autoddp.errors import BadInput
from autoddp.options import Options
from tests.support.cli import end_all, start_cli
from tests.support.ports import free_port

SOON = 60.0  # seconds, of a machine that is busy; without a word it would be ten minutes


def test_a_missing_node_rank_raises_with_the_fix():
    way = r"give --node-rank 0 to 1, another number on each node \(srun, mpirun and a PyTorchJob"
    with pytest.raises(BadInput, match=rf"^--nnodes is 2 without --node-rank; {way}"):
        launch.prepare(Options(nnodes=2, master_addr="127.0.0.1"))


def node(folder, port, number, nnodes=2):
    """`autoddp run` as one of several nodes on this machine."""
    (folder / str(number)).mkdir()
    (folder / str(number) / "s.py").write_text("print('it ran')\n")
    where = f"--nnodes {nnodes} --node-rank {number} --master-addr 127.0.0.1 --master-port {port}"
    return start_cli("run", "-n", 1, *where.split(), "s.py", folder=folder / str(number))


@pytest.mark.cluster
def test_a_node_reports_that_node_0_does_not_answer(tmp_path):
    port = free_port()
    second = node(tmp_path, port, 1)
    second.until(f"waiting for node 0 to answer at 127.0.0.1:{port} since ")
    first, second = end_all([node(tmp_path, port, 0), second])
    assert (first.rc, first.out, second.rc) == (0, "it ran\n", 0)


@pytest.mark.cluster
def test_a_node_0_that_ends_while_it_waits_ends_the_others(tmp_path):
    port = free_port()
    nodes = [node(tmp_path, port, number, 3) for number in range(2)]
    for each in nodes:
        each.until("waiting for node 2 of 3 since ")
    said = len(nodes[0].logs[1].read_text())
    os.kill(nodes[0].pid, signal.SIGINT)
    first, second = end_all(nodes, SOON)
    assert second.rc == 1
    assert f"node 0 at 127.0.0.1:{port} has ended before all nodes were there" in second.err
    assert (first.rc, first.out, first.err[said:]) == (-signal.SIGINT, "", "")
