"""The rendezvous of a job's launchers: each knows its number, and node 0 hosts the store.

Each node writes there that it has come, and reads whether all have. On one node nothing is awaited:
torch's own rendezvous would sleep at random, and start a thread before the ranks are forked.
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
JOIN = timedelta(minutes=10)  # in which all nodes are there; torchrun's
ANSWER = timedelta(seconds=60)  # in which the store does what it is asked
TICK = 0.1
NODES = "nodes"  # a prefix of keys in the store


def listen(port: int = 0) -> socket.socket:
    """Listen on the loopback alone, where torch's own store would on every interface."""
    return socket.create_server((HOST, port), backlog=socket.SOMAXCONN)


class FixedNodes(RendezvousHandler):
    """The rendezvous of nodes that are there from the start to the end; ranks use its store."""

    def __init__(self, options: Options) -> None:
        self.node, self.count = options.node_rank or 0, options.nnodes
        self.host, self.port = options.master_addr or HOST, options.master_port or 0
        self.say = partial(say, options)
        self._server: TCPStore | None = None
        self._store: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the other nodes; return at once where ranks start again, as all are there."""
        if self._store is None and self.count == 1:
            self._store = torch_internals.store_behind(listen(self.port))
            self.host, self.port = HOST, self._store.port
        elif self._store is None:
            self._store = self._rendezvous()
        where = RendezvousStoreInfo(self.host, self.port)
        return RendezvousInfo(PrefixStore(NAME, self._store), self.node, self.count, where)

    def _rendezvous(self) -> TCPStore:
        timeout, whom = Timeout(JOIN.total_seconds(), self.say), "node 0 to answer"
        if self.node == 0:
            # not by its address, which may be none of this machine's
            self._server = TCPStore(HOST, self.port, is_master=True, wait_for_workers=False)
            whom = "this machine, which has node 0, to be reached"
        network.await_store(self.host, self.port, timeout, whom)
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
                "see what it said, and start all nodes again"
            ) from None
        store.set_timeout(JOIN)
        return store

    def _register(self, registered: Store) -> None:
        """Take this node's number, which another start of it on the same machine may have had.

        Raises:
            BadInput: Another machine has it.
        """
        mine = socket.gethostname()
        held = registered.compare_set(f"{self.node}", "", mine).decode()
        if held != mine:
            raise BadInput(
                f"--node-rank is {self.node}, but node {self.node} of the job at {self.host}:"
                f"{self.port} is {held} already; give each node its own number"
            )

    # ---- what torch asks of a rendezvous; `NodeLinks` reports the end of the job to all nodes

    def get_backend(self) -> str:
        return NAME

    def get_run_id(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        """Return True: the store lives as long as the launcher of node 0."""
        return True

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True
