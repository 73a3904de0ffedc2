"""Torch's elastic agent for the ranks of this node; it finds who failed first, on all nodes.

It overrides what torch documents for whoever extends its agent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest

from autoddp.launch.failure import BAD_INPUT, Failure
from autoddp.launch.node_links import NodeLinks
from autoddp.process.launcher_signals import ALONE, LauncherSignals, kill

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import WorkerSpec

GRACE = 2.0  # seconds that ranks here have to fail by themselves, once one elsewhere has
HEALTHY = RunResult(WorkerState.HEALTHY)
FAILED = RunResult(WorkerState.FAILED)


class JobOver(Exception):
    """The end of a job that is not run again, whatever `--max-restarts` is."""


class NoLogs(DefaultLogsSpecs):
    """No files of torch's own for what ranks write: they have this process's streams."""

    def __init__(self) -> None:
        super().__init__(log_dir=os.devnull)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return no file to follow: torch's threads for those end a fifth of a second late."""
        return replace(super().reify(envs), tee_stdouts={}, tee_stderrs={})


class NodeAgent(LocalElasticAgent):
    """The agent of one node, which starts its ranks and sees them to their end."""

    def __init__(
        self,
        spec: WorkerSpec,
        ready: Callable[[int], None],
        signals: LauncherSignals,
        hang_timeout: float,
    ) -> None:
        super().__init__(spec, NoLogs(), start_method="fork")
        self._rdzv_handler: Any = None  # torch 2.6 would end the job for all with one node's ranks
        # `ready` is called with the number of the attempt just before the ranks are forked
        self.ready, self.signals, self.hang_timeout = ready, signals, hang_timeout
        # of this attempt, or of the one before while ranks start
        self.failure: Failure | None = None
        self.nodes: NodeLinks | None = None  # the other nodes, where there are any
        self.attempt = -1
        self._pids: dict[int, int] = {}  # of the ranks here, by local rank
        self._ended: RunResult | None = None  # of the ranks here, if all is well; others may run

    # ---- from one attempt to the next

    def _rendezvous(self, worker_group: Any) -> None:
        self._ended = None
        super()._rendezvous(worker_group)
        self.take_over_failure()
        if self.nodes is None and worker_group.group_world_size > 1:
            self.nodes = NodeLinks(
                worker_group.group_rank,
                worker_group.group_world_size,
                worker_group.master_addr,
                worker_group.master_port,
                self.hang_timeout,
            )

    def take_over_failure(self) -> None:
        """Take over the first failure of any node, unless this node refused its own input."""
        if self.nodes is not None:
            self.nodes.rest()
            if self.failure is None or self.failure.code != BAD_INPUT:
                self.failure = self.nodes.heard(0) or self.failure

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.attempt += 1
        self.ready(self.attempt)
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
        elsewhere = self.nodes.heard(GRACE if self._ended is None else 0)
        if elsewhere is not None:
            self.failure = elsewhere
            if elsewhere.lost:
                raise JobOver  # there is nobody to run the job again with
            return FAILED
        if self._ended is not None:
            return self._ended if self.nodes.over else HEALTHY
        result = self._own(worker_group)
        if result.state == WorkerState.SUCCEEDED:
            self._ended = result
            self.nodes.done()
            return HEALTHY
        return result

    def _own(self, worker_group: WorkerGroup) -> RunResult:
        """Return the state of the ranks of this node, and report a failure to the other nodes."""
        codes = exit_codes(self._pids)
        failed = [(local_rank, code) for local_rank, code in codes.items() if code]
        if failed:
            # of ranks that failed within one interval one that was killed: others fail without it
            local_rank, code = min(failed, key=lambda one: one[1] >= 0)
            rank = worker_group.workers[local_rank].global_rank
            self._note(Failure(rank, local_rank, code))
        with deadline() if failed else nullcontext():
            result = super()._monitor_workers(worker_group)
        if result.failures and not failed:  # since we have looked
            rank, one = min(result.failures.items(), key=lambda one: one[1].exitcode >= 0)
            self._note(Failure(rank, one.local_rank, one.exitcode))
        # some ended by `os._exit(0)`, which gives torch no return value
        ranks = range(self.signals.ranks)
        early = codes and all(n in codes or self.signals.code_of(n) == 0 for n in ranks)
        if early and result.state == WorkerState.HEALTHY:
            self._shutdown()
            ended = {worker.global_rank: None for worker in worker_group.workers}
            return RunResult(WorkerState.SUCCEEDED, ended)
        return result

    def _note(self, failure: Failure) -> None:
        self.failure = failure
        if self.nodes is not None:
            self.nodes.tell(failure)

    def _shutdown(self, *how: Any, **named: Any) -> None:
        with deadline():
            super()._shutdown(*how, **named)

    def _exit_barrier(self) -> None:
        """Do nothing: the ranks of all nodes have ended, see `_monitor_workers`.

        `NodeLinks` finds out when a node is lost; torch's store does not.
        """


def exit_codes(pids: dict[int, int]) -> dict[int, int]:
    """Return the exit codes of the ranks that have ended, and leave the wait to torch."""
    found = {}
    for local_rank, pid in pids.items():
        try:
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            found[local_rank] = 0  # torch has waited for it, and reports its failure
            continue
        if end is not None:
            found[local_rank] = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    return found


@contextmanager
def deadline() -> Iterator[None]:
    """Kill the ranks that do not end soon on a SIGTERM, for which torch waits half a minute."""
    timer = threading.Timer(ALONE, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # ranks are forked without threads around
