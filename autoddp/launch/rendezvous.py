"""The rendezvous of a job on one node: a store on a free port, and nobody to wait for.

torch's own c10d rendezvous sleeps at random so that many nodes do not meet all at once, and starts
a thread before the ranks are forked; that takes a tenth of the time of a short job. Jobs whose
nodes come and go have it: see `changing_nodes`.
"""

from __future__ import annotations

import socket

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from autoddp import torch_internals

NAME = "autoddp"  # of the job
HOST = "127.0.0.1"


def serve(port: int = 0) -> TCPStore:
    """Host a store that listens on the loopback alone; torch's own would on every interface."""
    return torch_internals.store_behind(
        socket.create_server((HOST, port), backlog=socket.SOMAXCONN)
    )


class OneNode(RendezvousHandler):
    """The only node of its job; the ranks use the agent's store."""

    def __init__(self, port: int) -> None:
        """Host the store at `port`, or at a free one where that is 0."""
        self.server = serve(port)

    def get_backend(self) -> str:
        return "one-node"

    @property
    def use_agent_store(self) -> bool:
        """Return True: the store lives as long as the ranks."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return at once, as node 0 of 1."""
        where = RendezvousStoreInfo(HOST, self.server.port)
        return RendezvousInfo(PrefixStore(NAME, self.server), 0, 1, where)

    def is_closed(self) -> bool:
        """Return False: the rendezvous ends with the launcher."""
        return False

    def set_closed(self) -> None:
        """Do nothing: nobody else is there to be told."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return NAME

    def shutdown(self) -> bool:
        """Return True: the store's server ends with the launcher."""
        return True
