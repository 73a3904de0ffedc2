"""The agent of a job whose nodes come and go: its ranks start again with the nodes there.

Node 0, whose launcher hosts the store, decides. Its lines tell the others to come along, so that
none of them takes for a failure what is a change; the rendezvous then says who takes part.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist
from torch.distributed import PrefixStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousTimeoutError

from autoddp.errors import AutoDDPError
from autoddp.launch.elastic import Agent
from autoddp.launch.failure import Failure, lost
from autoddp.launch.membership import JOIN, Membership
from autoddp.launch.node_links import NodeLinks

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import WorkerGroup

LEFT = "restarts"  # in a round's store: how many node 0 has left, whenever a launcher has come
TRIES = 2  # a node may be lost between the rendezvous and its first word to node 0


class Changing(Agent):
    """The agent of one node, where nodes come and go."""

    _ended: RunResult | None = None  # of the ranks here, if all is well; others may still run
    _leaves = False

    @property
    def membership(self) -> Membership:
        """Return this node's rendezvous handler."""
        return cast("Membership", self._worker_group.spec.rdzv_handler)

    def run(self, role: str = "default") -> RunResult:
        """Run this node's ranks to their end, as torch's agent does.

        Raises:
            AutoDDPError: There are not enough nodes, or the one with the store is gone.
        """
        o = self.options
        try:
            return cast("RunResult", super().run(role))
        except RendezvousTimeoutError:
            raise AutoDDPError(
                f"{o.min_nodes} nodes were not there within {JOIN.seconds // 60} minutes, "
                f"as --nnodes {o.nodes} wants"
            ) from None
        except (RendezvousError, dist.DistError):
            raise AutoDDPError(
                f"the job at {o.master_addr}:{o.master_port} has ended, or the node that hosts its "
                "store is lost: nobody answers there any more"
            ) from None

    def again(self) -> str:
        """Return what is said when ranks start once more."""
        if self.failure is not None and not self.failure.lost:
            return super().again()
        nodes = self._worker_group.group_world_size
        came = "" if self.failure is not None else "other nodes are there: "
        return f"{came}the job starts again on {nodes} node{'s' * (nodes != 1)}"

    # ---- from one round to the next

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._part()
        for left in reversed(range(TRIES)):
            try:
                return super()._rendezvous(worker_group)
            except (dist.DistError, AutoDDPError):
                if not left:
                    raise
        raise AssertionError

    def _part(self) -> None:
        """Close the lines of the last round; on node 0, note the nodes that were lost.

        What the old lines still bring is of the old ranks.
        """
        if self.nodes is None:
            return
        if self.membership.hosts:
            for number in self.nodes.gone:
                self.membership.lose(number)
        self.nodes.close()
        self.nodes, self._ended = None, None

    def _meet(self, worker_group: Any) -> None:
        o, node = self.options, worker_group.group_rank
        store = PrefixStore("launchers", worker_group.store)
        assert o.master_addr is not None
        if node == 0:
            store.set(LEFT, str(self._remaining_restarts))
        self._remaining_restarts = int(store.get(LEFT))
        count = worker_group.group_world_size
        self.nodes = NodeLinks(node, count, o.master_addr, store, o.hang_timeout, changes=True)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        pids = super()._start_workers(worker_group)
        self.membership.beat()
        return pids

    # ---- while ranks run

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self.nodes is not None
        if self.signals.ending is not None and not self._leaves:
            self._leave()
        if self.nodes.again:
            return self._restart(worker_group)
        if self._ended is not None:
            self.failure = self.nodes.heard(0)
            if self.nodes.over or self._leaves:
                return self._ended
            if self.failure is None:
                return RunResult(WorkerState.HEALTHY)
            return self._follow(self.failure, worker_group)
        result = super()._monitor_workers(worker_group)
        if result.state == WorkerState.SUCCEEDED:
            self._ended = result
            self.nodes.done()
            return RunResult(WorkerState.HEALTHY)
        if self._is_called(result):
            self.nodes.call()
            return self._restart(worker_group)
        return result

    def _is_called(self, result: RunResult) -> bool:
        """Return whether a node has come, and nothing else has happened."""
        assert self.nodes is not None
        healthy = result.state == WorkerState.HEALTHY and self.signals.ending is None
        return healthy and self.nodes.heard(0) is None and self.membership.waiting()

    def _restart(self, worker_group: WorkerGroup) -> RunResult:
        """Start the ranks again with other nodes, which uses up none of --max-restarts."""
        self._restart_workers(worker_group)
        return RunResult(WorkerState.HEALTHY)

    def _follow(self, elsewhere: Failure, worker_group: WorkerGroup) -> RunResult:
        assert self.nodes is not None
        orphaned = self.nodes.node != 0 and 0 in self.nodes.gone
        if not elsewhere.lost or orphaned or self.signals.ending is not None:
            return super()._follow(elsewhere, worker_group)
        self.nodes.take()
        return self._restart(worker_group)

    def _tell(self, own: Failure) -> None:
        number = self.signals.ending
        if number is not None:
            own = lost("", f"its launcher was ended by {signal.Signals(number).name}")
        super()._tell(own)

    def _leave(self) -> None:
        """Part from the job, as was asked by a signal; the others go on if node 0 is among them."""
        assert self.nodes is not None
        self._leaves = True
        self._remaining_restarts = 0
        if self.nodes.node != 0:
            self._tell(Failure(0, 0, 1))

    def _exit_barrier(self) -> None:
        """Do nothing: the other nodes have ended, too, see `_monitor_workers`."""
