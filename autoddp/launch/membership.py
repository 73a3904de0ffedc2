"""Nodes that come and go: torch's rendezvous, in which node 0 is the one that hosts its store.

The job cannot outlive that node, so its ranks come first: rank 0, whose files and terminal are the
job's, is there from the beginning to the end, and all ranks and launchers have one address to
reach.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
    _Action,
    _should_keep_alive,
)

from autoddp.errors import AutoDDPError
from autoddp.process import network

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
        _NodeDesc,
        _RendezvousContext,
    )

    from autoddp.options import Options

NAME = "autoddp"
# Nodes are numbered in the order of these names. Torch connects to that of node 0, from node 0.
HOST, GUEST = "127.0.0.1", "node"
JOIN = timedelta(minutes=10)  # in which the smallest number of nodes is there; torch's
LAST_CALL = timedelta(seconds=3)  # in which more may come before the ranks start for the first time
ANSWER = timedelta(seconds=60)  # in which the store does what it is asked; torch's


class Membership(DynamicRendezvousHandler):
    """Torch's rendezvous handler in one launcher."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.check: Callable[[], None] = lambda: None
        self._meets = False
        self._expected = 0
        self._former: dict[_NodeDesc, int] = {}  # who took part in the round before, by its number
        self._lost: set[_NodeDesc] = set()
        self._op_executor = Doorkeeper(self._op_executor, self._decide)  # type: ignore[assignment]

    @property
    def hosts(self) -> bool:
        """Return whether this launcher hosts the store."""
        return self._this_node.addr == HOST

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the nodes that are there; ranks get a store of their own, empty of former ranks'."""
        self._bootstrap_store_info = self._shared_tcp_store_server = None
        still = set(self._former) - self._lost
        self._expected = len(still | self._state_holder.state.wait_list)
        self._meets = True
        info = super().next_rendezvous()
        self._meets = False
        self._stop_heartbeats()  # a thread: it rests while ranks are forked
        self._former = dict(self._state_holder.state.participants)
        self._lost.clear()
        return info

    def beat(self) -> None:
        """Start the heartbeats again, once the ranks are forked."""
        self._start_heartbeats()

    def num_nodes_waiting(self) -> int:
        """Return 0: torch's agent shall not act on nodes that wait by itself, see `waiting`."""
        return 0

    def waiting(self) -> bool:
        """Return whether nodes want to take part; node 0 asks, and tells the others."""
        return self.hosts and super().num_nodes_waiting() > 0

    def lose(self, number: int) -> None:
        """Stop waiting for the node of this number."""
        self._lost |= {node for node, rank in self._former.items() if rank == number}

    def _decide(self, action: Callable[[], _Action], ctx: _RendezvousContext) -> _Action:
        """Choose torch's next step, but let nobody take node 0's seat or wait for lost nodes."""
        if self._meets:  # not in the thread that says that this node lives
            self.check()
        state = ctx.state
        for node in self._lost & set(state.participants):
            del state.participants[node]
            state.last_heartbeats.pop(node, None)
        step, there = action(), state.participants
        if (
            step is _Action.ADD_TO_PARTICIPANTS
            and not self.hosts
            and all(n.addr != HOST for n in there)
        ):
            return _Action.KEEP_ALIVE if _should_keep_alive(ctx) else _Action.SYNC
        waits = (
            step in (_Action.SYNC, _Action.KEEP_ALIVE) and ctx.node in there and not state.complete
        )
        if waits and self._expected and len(there) >= max(self._expected, ctx.settings.min_nodes):
            return _Action.MARK_RENDEZVOUS_COMPLETE  # all that were there before are: no last call
        return step


class Doorkeeper:
    """Torch's executor of rendezvous operations, whose steps are decided by `decide`."""

    def __init__(
        self, executor: Any, decide: Callable[[Callable[[], _Action], Any], _Action]
    ) -> None:
        self._executor, self._decide = executor, decide

    def run(self, handler: Callable[..., _Action], deadline: float, update: Any = None) -> None:
        """Run one operation of torch's handler."""

        def step(ctx: _RendezvousContext, until: float) -> _Action:
            return self._decide(lambda: handler(ctx, until), ctx)

        self._executor.run(step, deadline, update)


def create(options: Options, check: Callable[[], None]) -> Membership:
    """Host the store, or reach it; call `check` now and then while nodes are waited for.

    Raises:
        AutoDDPError: Nobody hosts the store.
    """
    assert options.master_addr is not None
    assert options.master_port is not None
    store, hosts = _store(options.master_addr, options.master_port)
    membership = Membership.from_backend(
        NAME,
        store,
        C10dRendezvousBackend(store, NAME),
        options.min_nodes or 1,
        options.nnodes,
        HOST if hosts else f"{GUEST} {socket.gethostname()}",
        RendezvousTimeout(join=JOIN, last_call=LAST_CALL),
    )
    membership.check = check
    return membership


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
