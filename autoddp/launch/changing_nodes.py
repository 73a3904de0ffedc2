"""The rendezvous of a job whose nodes come and go: torch's own, c10d, as torchrun has it.

The first launcher at `--master-addr` hosts the store, and the job cannot outlive it. Torch numbers
nodes by their addresses; the host's sorts before all others, so that rank 0, whose files and
terminal are the job's, is there in every round that the host takes part in.

Torch's heartbeats, a thread, go on while ranks are forked. A rank may then find the locks of the
launcher's store held for ever, but it never asks that store: it makes connections of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)

from autoddp.errors import AutoDDPError
from autoddp.launch.rendezvous import NAME
from autoddp.process import network

if TYPE_CHECKING:
    from autoddp.options import Options

HOST = "0.0.0.0"  # the host's address among nodes: it sorts before every other
JOIN = timedelta(minutes=10)  # in which the smallest number of nodes is there; torch's
# In which more may come once the smallest number is there. A node that ends its ranks asks once a
# second whether all others have, too.
LAST_CALL = timedelta(seconds=5)
ANSWER = timedelta(seconds=60)  # in which the store does what it is asked; torch's
GIVEN_UP = 15  # seconds without a heartbeat, after which torch takes a node for dead
APART = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


class Backend(C10dRendezvousBackend):
    """Torch's shared state of a rendezvous; who waits for nodes calls `check` now and then."""

    def __init__(self, store: TCPStore, check: Callable[[], None]) -> None:
        super().__init__(store, NAME)
        self.check, self.waits = check, False

    def get_state(self) -> Any:
        """Return the state, or raise what `check` does in a launcher that waits for nodes."""
        if self.waits and threading.current_thread() is threading.main_thread():
            self.check()
        return super().get_state()


class ChangingNodes(DynamicRendezvousHandler):
    """The rendezvous handler of one launcher, which tells torch's agent when to start again."""

    again = False  # whether the ranks shall start again with the nodes that are there
    first = False  # whether this node is node 0 of the present round
    address = ""  # of the host
    backend: Backend

    @property
    def use_agent_store(self) -> bool:
        """Return True: the launcher of node 0 hosts the ranks' store."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the nodes that are there; ranks get a store of their own, empty of former ranks'."""
        self.again, self.backend.waits = False, True
        with _apart():
            info = super().next_rendezvous()
        self.backend.waits = False
        where, self.first = info.bootstrap_store_info, info.rank == 0
        assert where is not None
        address = self.address if where.master_addr == HOST else where.master_addr
        if self.first:
            self._ranks_store = TCPStore(
                address, where.master_port, is_master=True, wait_for_workers=False
            )
        there = RendezvousStoreInfo(address, where.master_port)
        return RendezvousInfo(info.store, info.rank, info.world_size, there)

    def num_nodes_waiting(self) -> int:
        """Return 1 where the ranks shall start again: all nodes' do at node 0's word."""
        return int(self.again)

    def has_newcomers(self) -> bool:
        """Return whether nodes want to take part; node 0 asks, and tells the others."""
        return self.first and super().num_nodes_waiting() > 0


@contextmanager
def _apart() -> Iterator[None]:
    """Have torch find a port for the ranks' store in each round.

    The store that it would share between rounds holds former ranks' keys, and torch 2.11 to 2.15
    do not tell of it a node that comes in a later round.
    """
    before = os.environ.get(APART)
    os.environ[APART] = "1"
    try:
        yield
    finally:
        del os.environ[APART]
        if before is not None:
            os.environ[APART] = before


def create(options: Options, check: Callable[[], None]) -> ChangingNodes:
    """Host the store, or reach it; call `check` now and then while nodes are waited for.

    Raises:
        AutoDDPError: Nobody hosts the store.
    """
    assert options.master_addr is not None
    assert options.master_port is not None
    store, hosts = _store(options.master_addr, options.master_port)
    backend = Backend(store, check)
    handler = ChangingNodes.from_backend(
        NAME,
        store,
        backend,
        options.min_nodes or 1,
        options.nnodes,
        HOST if hosts else network.address_to(options.master_addr),
        RendezvousTimeout(join=JOIN, last_call=LAST_CALL),
    )
    handler.address, handler.backend = options.master_addr, backend
    return handler


def _store(host: str, port: int) -> tuple[TCPStore, bool]:
    """Return the store, and whether it is ours: the first launcher at the address hosts it."""
    if network.is_here(host) and network.is_free(port):
        try:
            return TCPStore(
                host, port, is_master=True, timeout=ANSWER, wait_for_workers=False
            ), True
        except dist.DistNetworkError:
            pass  # another launcher on this machine was quicker
    try:
        store = TCPStore(host, port, is_master=False, timeout=JOIN)
    except dist.DistError:
        raise AutoDDPError(
            f"nobody answers at {host}:{port} for {JOIN.seconds // 60} minutes; "
            "the node with that address hosts the job's store: start it"
        ) from None
    store.set_timeout(ANSWER)
    return store, False
