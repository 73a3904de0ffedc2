"""Torch's elastic agent for the ranks of this node; tells who failed first, on all nodes.

It overrides what torch documents for whoever extends its agent. Where nodes come and go, node 0
tells the others to come along before its ranks end, so that none takes for a failure what is a
change; each agent then says that a node waits, on which torch starts the ranks again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist
from torch.distributed import PrefixStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousTimeoutError

from autoddp.errors import AutoDDPError
from autoddp.launch import endings, say
from autoddp.launch.changing_nodes import GIVEN_UP, JOIN, ChangingNodes
from autoddp.launch.failure import Failure, lost
from autoddp.launch.node_links import NodeLinks

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import WorkerSpec

    from autoddp.options import Options
    from autoddp.process.launcher_signals import LauncherSignals

PATIENCE = 2.0  # seconds that ranks here have to fail by themselves, once one elsewhere has
HEALTHY = RunResult(WorkerState.HEALTHY)
FAILED = RunResult(WorkerState.FAILED)


class JobOver(Exception):
    """The end of a job that is not run again, whatever `--max-restarts` says."""


class NoLogs(DefaultLogsSpecs):
    """No files of torch's own for what ranks write: they have this process's streams."""

    def __init__(self) -> None:
        super().__init__(log_dir=os.devnull)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return no file to follow: torch's threads for those end a fifth of a second late."""
        return replace(super().reify(envs), tee_stdouts={}, tee_stderrs={})


class Agent(LocalElasticAgent):
    """The agent of one node, which starts its ranks and sees them to their end."""

    def __init__(
        self,
        spec: WorkerSpec,
        ready: Callable[[], None],
        options: Options,
        signals: LauncherSignals,
    ) -> None:
        super().__init__(spec, NoLogs(), start_method="fork")
        self._rdzv_handler: Any = None  # torch 2.6 would end the job for all with one node's ranks
        # `ready` is called just before the ranks are forked
        self.ready, self.options, self.signals = ready, options, signals
        # of this attempt, or of the one before while ranks start
        self.failure: Failure | None = None
        self.nodes: NodeLinks | None = None
        self.attempt = -1
        self.restarts = 0  # because a rank failed
        self._pids: dict[int, int] = {}  # of the ranks here, by local rank
        self._ended: RunResult | None = None  # of the ranks here, if all is well; others may run
        self._leaves = False  # by a signal, from a job whose nodes come and go
        handler = spec.rdzv_handler
        self._changing = handler if isinstance(handler, ChangingNodes) else None

    def again(self) -> str:
        """Return what is said when ranks start once more."""
        if self.failure is not None and not self.failure.lost:
            most = self.get_worker_group().spec.max_restarts
            return f"the job is run again ({self.restarts} of {most})"
        nodes = self.get_worker_group().group_world_size
        came = "" if self.failure is not None else "other nodes are there: "
        return f"{came}the job starts again on {nodes} node{'s' * (nodes != 1)}"

    def run(self, role: str = "default") -> RunResult:
        """Run this node's ranks to their end, as torch's agent does.

        Raises:
            AutoDDPError: There are not enough nodes, or the one with the store is gone.
            JobOver: A failure ends the job, though it might have been run again.
        """
        o, changing = self.options, self._changing
        try:
            result = cast("RunResult", super().run(role))
        except RendezvousTimeoutError:
            raise AutoDDPError(
                f"{o.min_nodes} nodes were not there within {JOIN.seconds // 60} minutes, "
                f"as --nnodes {o.nodes} wants"
            ) from None
        except (RendezvousError, dist.DistError):
            if changing is None:
                raise
            if self.failure is not None and not self.failure.lost:
                raise JobOver from None  # nobody else runs the job again
            raise AutoDDPError(
                f"the job at {o.master_addr}:{o.master_port} has ended, or the node that hosts its "
                "store is lost: nobody answers there any more"
            ) from None
        if changing is not None and self.failure is not None and not self._leaves:
            changing.shutdown()  # a node that came later has more restarts left, and would wait
        return result

    # ---- from one round to the next

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        if self._changing is not None and self.nodes is not None:
            self.nodes.close()  # what the old lines still bring is of the old ranks
            self.nodes = None
        self._ended = None
        try:
            self._meet(worker_group)
        except (dist.DistError, AutoDDPError):
            if self._changing is None:
                raise
            self._meet(worker_group)  # a node was lost before its first word to node 0

    def _meet(self, worker_group: Any) -> None:
        super()._rendezvous(worker_group)
        if self.options.nnodes == 1:
            return
        if self.nodes is not None:
            self.nodes.rest()
            return
        self.nodes = NodeLinks(
            worker_group.group_rank,
            worker_group.group_world_size,
            worker_group.master_addr,
            PrefixStore("launchers", worker_group.store),
            self.options.hang_timeout,
            changes=self._changing is not None,
        )

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.attempt += 1
        if self.failure is not None and not self.failure.lost:
            self.restarts += 1
        self.ready()
        self._pids = super()._start_workers(worker_group)
        self.signals.listen()  # torch up to 2.9 has set handlers, of ignored signals, too
        self.failure = None
        if self.nodes is not None:
            self.nodes.listen()
        return self._pids

    # ---- while ranks run

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self.nodes is None:
            return self._own(worker_group)
        if self._changing is not None and self.signals.ending is not None and not self._leaves:
            self._leaves = True
            if self.nodes.node != 0:  # the others go on
                self._tell(Failure(0, 0, 1))
        if self.nodes.again:
            return self._start_again()
        elsewhere = self.nodes.heard(PATIENCE if self._ended is None else 0)
        if elsewhere is not None:
            return self._follow(elsewhere)
        if self._ended is not None:
            return self._ended if self.nodes.over or self._leaves else HEALTHY
        result = self._own(worker_group)
        if result.state == WorkerState.SUCCEEDED:
            self._ended = result
            self.nodes.done()
            return HEALTHY
        if result.state == WorkerState.HEALTHY and self._has_newcomers():
            self.nodes.call()
            return self._start_again()
        return result

    def _own(self, worker_group: WorkerGroup) -> RunResult:
        """Return how the ranks of this node do, and tell the other nodes of a failure."""
        codes = endings.codes(self._pids)
        own = self.failure = endings.first(codes, worker_group)
        if own is not None:
            self._tell(own)
        early = own is None and endings.left_early(codes, self.signals)
        with endings.deadline() if own is not None else nullcontext():
            result = super()._monitor_workers(worker_group)
        if result.failures and self.failure is None:  # since we have looked
            rank, one = min(result.failures.items(), key=lambda one: one[1].exitcode >= 0)
            self.failure = Failure(rank, one.local_rank, one.exitcode)
            self._tell(self.failure)
        if early and result.state == WorkerState.HEALTHY:
            self._shutdown()
            return RunResult(
                WorkerState.SUCCEEDED, {w.global_rank: None for w in worker_group.workers}
            )
        return result

    def _has_newcomers(self) -> bool:
        """Return whether a node has come, and nothing else has happened."""
        if self._changing is None or self.nodes is None or self.signals.ending is not None:
            return False
        return self.nodes.heard(0) is None and self._changing.has_newcomers()

    def _start_again(self) -> RunResult:
        """Have torch start the ranks again with other nodes, which uses up no restart."""
        assert self._changing is not None
        self._changing.again = True
        return HEALTHY

    def _follow(self, elsewhere: Failure) -> RunResult:
        """Fail the ranks here, as one elsewhere has failed, or go on without a lost node."""
        assert self.nodes is not None
        self.nodes.take()
        self.failure = elsewhere
        if not elsewhere.lost:
            return FAILED
        if self._changing is None or self.signals.ending is not None:
            raise JobOver  # there is nobody to run the job again with
        if 0 in self.nodes.gone and self.nodes.address == self.options.master_addr:
            why = f"{elsewhere.lost}; the job, whose store it hosts, ends with it"
            self.failure = replace(elsewhere, lost=why)
            raise JobOver
        say(self.options, f"{elsewhere.where} is lost: {elsewhere.lost}")
        say(self.options, f"the job starts again once torch has missed it for {GIVEN_UP} s")
        return self._start_again()

    def _tell(self, own: Failure) -> None:
        if self.nodes is None:
            return
        number = self.signals.ending
        if self._changing is not None and number is not None:
            own = lost("", f"its launcher was ended by {signal.Signals(number).name}")
        self.nodes.tell(own)

    def _shutdown(self, *how: Any, **named: Any) -> None:
        with endings.deadline():
            super()._shutdown(*how, **named)

    def _exit_barrier(self) -> None:
        """Do nothing: the ranks of all nodes have ended, see `_monitor_workers`.

        The lines between launchers tell when a node is lost; torch's store does not.
        """
