"""Collectives of ranks on several nodes: by memory within a node, by gloo between their first ones.

What the ranks of a node share does not travel: one message each way and node does. Sums are taken
in the order of a node's ranks, and between the nodes in gloo's ring, of which all first ranks have
the same bits; so all ranks do. A broadcast goes by gloo over all ranks, which takes no longer.

Nobody waits for ever. A rank that ends, or leaves, is missed by those that meet it in memory (see
`NodeBarrier`), and a first rank by the other first ones, whose connections to it break. Whoever
misses another one leaves, too: it meets nobody in memory any more, and breaks its own connections.
So word goes to all that wait, since each waits for the first rank of its node, for a rank of its
node, or for another first rank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, Store

from autoddp import torch_internals
from autoddp.comm.node_memory import NodeMemory, pieces, share, supported
from autoddp.comm.sockets import namespace

FirstRanks = Any  # a ProcessGroupGloo: torch's stubs know no collective of it


class NodesMemory:
    """One rank's part in what `NodeMemory` does for one node, for several.

    All ranks call the same methods, in the same order; two of these serve two threads.

    Args:
        nodes: The ranks of each node, in order.
        mine: The number of this rank's node.
        memory: The memory of that node; None where this rank is alone.
        first: The process group of the nodes' first ranks; None on others.
    """

    def __init__(
        self,
        nodes: list[list[int]],
        mine: int,
        memory: NodeMemory | None,
        first: FirstRanks | None,
    ) -> None:
        self.ranks, self._memory, self._first = nodes[mine], memory, first
        self._leads = first is not None
        self._node_of = {rank: number for number, some in enumerate(nodes) for rank in some}
        # what the first ranks are about to add up, by what it is to be divided, and gloo's work
        self._started: list[tuple[Tensor, int, list[Any]]] = []

    def leave(self) -> None:
        """Meet nobody any more, which the others see as if this rank had ended."""
        if self._memory is not None:
            self._memory.leave()
        self._started.clear()
        # with the last reference its connections go, once what has been started is over
        self._first = None

    @torch.no_grad()
    def start_all_reduce(self, x: Tensor, op: Any, share: int = 1) -> None:
        """Start what the next `all_reduce` ends; between nodes it goes on by itself meanwhile."""
        options = dist.AllreduceOptions()
        options.reduceOp = op
        with self._or_leave():
            for piece in pieces(x):  # of which one travels while the next one is added up
                if self._memory is not None:
                    self._memory.all_reduce(piece, op)
                works = [self._gloo().allreduce([piece], options)] if self._leads else []
                self._started.append((piece, share, works))

    @torch.no_grad()
    def all_reduce(self, x: Tensor, op: Any, share: int = 1) -> None:
        """Reduce `x`, which is contiguous, in place over the ranks, and divide it by `share`."""
        self.start_all_reduce(x, op, share)
        with self._or_leave():
            while self._started:
                piece, parts, works = self._started.pop(0)
                _wait(works)
                if self._leads and parts != 1:
                    piece.div_(parts)
                if self._memory is not None:
                    self._memory.broadcast([(0, piece)])

    @torch.no_grad()
    def all_gather(self, out: Tensor, x: Tensor) -> None:
        """Gather `x`, bytes, of all ranks as the rows of `out`."""
        with self._or_leave():
            if self._memory is not None:
                self._memory.all_gather([out[rank] for rank in self.ranks], x)
            else:
                out[self.ranks[0]].copy_(x)
            _wait([self._sent(*row) for row in enumerate(out)] if self._leads else [])
            if self._memory is not None:
                others = [row for rank, row in enumerate(out) if rank not in self.ranks]
                self._memory.broadcast([(0, row) for row in others])

    def _sent(self, rank: int, x: Tensor) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank = self._node_of[rank]
        return self._gloo().broadcast([x], options)

    def _gloo(self) -> FirstRanks:
        if self._first is None:
            raise dist.DistNetworkError("this rank has left the meetings of the nodes")
        return self._first

    @contextmanager
    def _or_leave(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.leave()
            raise


def _wait(works: list[Any]) -> None:
    """Wait for gloo's work, and keep none: a traceback would, and with it the connections."""
    try:
        while works:
            works.pop(0).wait()
    finally:
        works.clear()


Memory = NodeMemory | NodesMemory


def share_on_nodes(
    rank: int, store: Store, confer: Callable[[str, bytes], bytes], many: int, timeout: timedelta
) -> tuple[list[Memory], str]:
    """Share so many memories within each node that has several ranks; all ranks call this.

    Returns:
        This rank's view of each; if a node cannot share any, on all ranks none, and why.
    """

    def all_say(said: str | None) -> list[str | None]:
        found: list[str | None] = json.loads(confer("shared memory", json.dumps(said).encode()))
        return found

    names = all_say(namespace() if supported() else None)
    if None in names:
        return [], f"rank {names.index(None)}: its system lacks memfd_create or sem_clockwait"
    nodes = [[r for r, other in enumerate(names) if other == name] for name in dict.fromkeys(names)]
    if len(nodes) == len(names):
        return [], ""
    mine = next(number for number, some in enumerate(nodes) if rank in some)
    found: list[NodeMemory] = []
    failed = None
    if len(nodes[mine]) > 1:
        try:
            found = share(rank, nodes[mine], store, many)
            failed = None if found else ""  # another rank of the node says why
        except OSError as error:
            failed = error.strerror or str(error)
    said = all_say(failed)
    if said.count(None) < len(said):
        known = (f"rank {other}: {why}" for other, why in enumerate(said) if why)
        return [], next(known, "ranks of one network namespace do not reach each other")
    if len(nodes) == 1:
        return [*found], ""
    groups: list[FirstRanks | None] = [None] * many
    if rank == nodes[mine][0]:
        stores = [PrefixStore(f"memory/first/{number}", store) for number in range(many)]
        with torch_internals.quiet_gloo():
            groups = [ProcessGroupGloo(each, mine, len(nodes), timeout) for each in stores]
    memories: list[NodeMemory | None] = [*found] or [None] * many
    pairs = zip(memories, groups, strict=True)
    return [NodesMemory(nodes, mine, memory, first) for memory, first in pairs], ""
