"""What launchers tell each other by node 0's store: who failed first, who is lost."""

from __future__ import annotations

import time

import pytest
from torch.distributed import PrefixStore, TCPStore

from autoddp.launch.failure import Failure
from autoddp.launch.node_links import NodeLinks
from autoddp.launch.rendezvous import MEETING

SOON = 60.0  # seconds, of a machine that is busy


@pytest.fixture
def links():
    """The links of three nodes, which listen."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for node in range(3):
        PrefixStore(MEETING, server).set(str(node), f"host{node}")
    found = [NodeLinks(node, 3, "127.0.0.1", server.port, 8) for node in range(3)]
    for link in found:
        link.listen()
    yield found
    for link in reversed(found):
        link.rest()


def until(true):
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_first_failure_counts_on_all_nodes_and_one_by_a_signal_comes_first(links):
    links[0].tell(Failure(0, 0, 1))
    links[1].tell(Failure(2, 0, -9))
    until(lambda: links[0].heard(0) and links[2].heard(0))
    first, second = links[0].heard(0), links[2].heard(0)
    assert first == second == Failure(2, 0, -9, "node 1 (host1)")
    assert links[1].heard(0) is None, "it has told so itself"


def test_a_node_that_is_silent_is_lost(links):
    time.sleep(0.2)
    links[2].rest()
    until(lambda: links[0].heard(0) and links[1].heard(0))
    assert links[1].heard(0).lost == "it does not answer"
    assert links[1].heard(0).where == "node 2 (host2)"
