"""The rendezvous of a job on one node: a store on a free port, and nobody to wait for.

torch's own c10d rendezvous sleeps at random so that many nodes do not meet all at once, and starts
a thread before the ranks are forked; that takes a tenth of the time of a short job.
"""

from __future__ import annotations

import socket

from torch.distributed import PrefixStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from autoddp import torch_internals

NAME = "autoddp"  # of the job
HOST = "127.0.0.1"


def listen(port: int = 0) -> socket.socket:
    """Listen on the loopback alone, where torch's own store would on every interface."""
    return socket.create_server((HOST, port), backlog=socket.SOMAXCONN)


class SteadyNodes(RendezvousHandler):
    """The rendezvous of nodes that are there from the start to the end; ranks use its store."""

    def get_backend(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        """Return True: the store lives as long as the launcher of node 0."""
        return True

    def is_closed(self) -> bool:
        """Return False: the rendezvous ends with the launchers."""
        return False

    def set_closed(self) -> None:
        """Do nothing: launchers tell each other of the end by their lines."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no node comes later."""
        return 0

    def get_run_id(self) -> str:
        return NAME

    def shutdown(self) -> bool:
        """Return True: the store's server ends with the launcher of node 0."""
        return True


class OneNode(SteadyNodes):
    """The only node of its job."""

    def __init__(self, port: int) -> None:
        """Host the store at `port`, or at a free one where that is 0."""
        self.server = torch_internals.store_behind(listen(port))

    def next_rendezvous(self) -> RendezvousInfo:
        """Return at once, as node 0 of 1."""
        where = RendezvousStoreInfo(HOST, self.server.port)
        return RendezvousInfo(PrefixStore(NAME, self.server), 0, 1, where)
