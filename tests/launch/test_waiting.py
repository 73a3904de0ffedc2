"""Nodes and ranks that wait for others: who is missing is said, and who gives up says why."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from torch.distributed import HashStore

from autoddp import launch
from autoddp.comm import patience
from autoddp.comm.patience import Patience, missing
from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch import rendezvous
from autoddp.options import Options
from tests.support.cli import environ
from tests.support.ports import free_port

SOON = 60.0  # seconds, of a machine that is busy; without a word it would be ten minutes
HOST = socket.gethostname()


def test_a_wait_says_for_whom_since_when_and_until_when(monkeypatch):
    monkeypatch.setattr(patience, "EVERY", 0.05)
    said: list[str] = []
    wait = Patience(600, said.append)
    wait.look(lambda: "node 1 of 2")
    assert said == []
    time.sleep(0.06)
    wait.look(lambda: "node 1 of 2")
    wait.look(lambda: "node 1 of 2")
    (line,) = said
    words = r"waiting for node 1 of 2 since (\S+):\d\d:(\d\d) \(0 s\), until \S+:\d\d:(\d\d)"
    found = re.fullmatch(words, line)
    assert found is not None, line
    assert found[2] == found[3], "ten minutes later"


def test_a_wait_that_is_over_names_who_has_not_come():
    wait = Patience(0, print)
    with pytest.raises(AutoDDPError, match="in vain for ranks 1, 2 of 3"):
        wait.look(lambda: missing("rank", [1, 2], 3))


def test_a_node_without_a_number_is_refused_with_the_way_to_get_one():
    way = r"give --node-rank 0 to 1, another number on each node \(srun, mpirun and a PyTorchJob"
    with pytest.raises(BadInput, match=rf"^--nnodes is 2 without --node-rank; {way}"):
        launch.prepare(Options(nnodes=2, master_addr="127.0.0.1"))


class Node:
    """`autoddp run` as one node of several on this machine, whose lines come as they are said."""

    def __init__(self, folder, port, node, nnodes=2, script="s.py", options=()):
        (folder / "s.py").write_text("print('it ran')\n")
        where = f"--nnodes {nnodes} --node-rank {node} --master-addr 127.0.0.1 --master-port {port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autoddp", "run", "-n", "1", *where.split(), *options, script],
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
def test_a_node_says_that_node_0_does_not_answer(tmp_path):
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


def test_a_number_that_another_machine_has_is_refused():
    meeting = HashStore()
    meeting.set("1", "another")
    options = Options(nnodes=2, node_rank=1, master_addr="127.0.0.1", master_port=1)
    with pytest.raises(BadInput, match=r"^--node-rank is 1, but node 1 .* is another already"):
        rendezvous.FixedNodes(options)._come(meeting)


@pytest.mark.cluster
def test_a_node_that_was_killed_while_it_waited_may_come_again(tmp_path):
    port = free_port()
    nodes = [Node(tmp_path, port, node, 3) for node in range(2)]
    for node in nodes:
        node.until("waiting for node 2 of 3 since ")
    nodes[1].process.kill()
    nodes[1].end()
    nodes[1:] = [Node(tmp_path, port, node, 3) for node in (1, 2)]
    ended = [node.end(240) for node in nodes]
    assert [code for code, *_ in ended] == [0] * 3, ended


@pytest.mark.cluster
def test_ranks_that_another_launcher_started_say_which_has_not_come(tmp_path):
    (tmp_path / "s.py").write_text("print('it ran')\n")
    port, ranks = free_port(), []
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}

    def start(rank):
        more = variables | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "MASTER_PORT": f"{port}"}
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-m", "autoddp", "run", "s.py"],
                cwd=tmp_path,
                env=environ({**more, "TORCH_CPP_LOG_LEVEL": "ERROR"}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    try:
        start(0)
        assert "waiting for rank 1 of 2 since " in ranks[0].stderr.readline()
        start(1)
        assert [rank.wait(240) for rank in ranks] == [0, 0]
        assert ranks[0].stdout.read() == "it ran\n"
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.kill(rank.pid, signal.SIGKILL)
            rank.communicate()
