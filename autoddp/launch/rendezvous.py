"""The rendezvous of a job's launchers: each knows its node rank, and node 0 hosts the store.

Each node registers in the store, and waits for all others. On a single node there is no wait;
torch's own rendezvous would sleep for a random time, and start a thread before the ranks fork.
"""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from autoddp import torch_internals
from autoddp.comm.timeout import Timeout, missing
from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch.failure import say
from autoddp.process import network

if TYPE_CHECKING:
    from autoddp.options import Options

NAME = "autoddp"  # of the job
HOST = "127.0.0.1"
JOIN = timedelta(minutes=10)  # the time for all nodes to register, as in torchrun
ANSWER = timedelta(seconds=60)  # the timeout of the store
TICK = 0.1
NODES = "nodes"  # a prefix of keys in the store


def listen(port: int = 0) -> socket.socket:
    """Listen on the loopback interface only; torch's own store would listen on all."""
    return socket.create_server((HOST, port), backlog=socket.SOMAXCONN)


class FixedNodes(RendezvousHandler):
    """The rendezvous of a fixed set of nodes; ranks use its store, too."""

    def __init__(self, options: Options) -> None:
        self.node, self.count = options.node_rank or 0, options.nnodes
        self.host, self.port = options.master_addr or HOST, options.master_port or 0
        self.say = partial(say, options)
        self._server: TCPStore | None = None
        self._store: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the other nodes; return at once when ranks restart."""
        if self._store is None and self.count == 1:
            self._store = torch_internals.store_behind(listen(self.port))
            self.host, self.port = HOST, self._store.port
        elif self._store is None:
            self._store = self._rendezvous()
        info = RendezvousStoreInfo(self.host, self.port)
        return RendezvousInfo(PrefixStore(NAME, self._store), self.node, self.count, info)

    def _rendezvous(self) -> TCPStore:
        timeout, event = Timeout(JOIN.total_seconds(), self.say), "node 0 to answer"
        if self.node == 0:
            # the given address may not be one of this machine
            self._server = TCPStore(HOST, self.port, is_master=True, wait_for_workers=False)
            event = "this machine, which is node 0, to be reachable at that address"
        network.await_store(self.host, self.port, timeout, event)
        try:
            store = TCPStore(self.host, self.port, is_master=False, timeout=ANSWER)
            registered = PrefixStore(NODES, store)
            self._register(registered)
            while numbers := [n for n in range(self.count) if not registered.check([f"{n}"])]:
                timeout.check(lambda: missing("node", numbers, self.count))
                time.sleep(TICK)
        except dist.DistError:
            raise AutoDDPError(
                f"node 0 at {self.host}:{self.port} has ended before all nodes were there; "
                "look at its output, and start all nodes again"
            ) from None
        store.set_timeout(JOIN)
        return store

    def _register(self, registered: Store) -> None:
        """Register this node's rank; an earlier process of the same machine may have done so.

        Raises:
            BadInput: Another machine has the same node rank.
        """
        host = socket.gethostname()
        registrant = registered.compare_set(f"{self.node}", "", host).decode()
        if registrant != host:
            raise BadInput(
                f"--node-rank is {self.node}, but node {self.node} of the job at {self.host}:"
                f"{self.port} is {registrant} already; give each node its own number"
            )

    # ---- other methods of torch's interface; `NodeLinks` reports the end of the job to all nodes

    def get_backend(self) -> str:
        return NAME

    def get_run_id(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        """Return True, as the store lives as long as the launcher of node 0."""
        return True

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True
