"""Torch's elastic agent for the ranks of this node; tells who failed first, on all nodes."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.distributed import PrefixStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from autoddp.launch.failure import Failure
from autoddp.launch.node_links import NodeLinks
from autoddp.process.launcher_signals import ALONE, LauncherSignals

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.multiprocessing import LogsSpecs

    from autoddp.options import Options

PATIENCE = 2.0  # seconds that ranks here have to fail by themselves, once one elsewhere has


class Agent(LocalElasticAgent):
    """The agent of one node, which starts its ranks and sees them to their end."""

    def __init__(
        self, spec: WorkerSpec, logs: LogsSpecs, options: Options, signals: LauncherSignals
    ) -> None:
        super().__init__(spec, logs, start_method="fork")
        self.options, self.signals = options, signals
        # of this attempt, or of the one before while ranks start
        self.failure: Failure | None = None
        self.nodes: NodeLinks | None = None
        self.attempt = -1

    @property
    def restarts(self) -> int:
        """Return how often the job was run again because a rank failed."""
        return int(self._worker_group.spec.max_restarts - self._remaining_restarts)

    def again(self) -> str:
        """Return what is said when ranks start once more."""
        return f"the job is run again ({self.restarts} of {self._worker_group.spec.max_restarts})"

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        if self.options.nnodes > 1:
            self._meet(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.attempt += 1
        pids = super()._start_workers(worker_group)
        self.failure = None
        if self.nodes is not None:
            self.nodes.listen(self.restarts)
        return pids

    def _meet(self, worker_group: Any) -> None:
        if self.nodes is not None:
            self.nodes.rest()
            return
        o = self.options
        apart = PrefixStore("launchers", worker_group.store)
        assert o.master_addr is not None
        self.nodes = NodeLinks(o.node_rank, o.nnodes, o.master_addr, apart, o.hang_timeout)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        own, elsewhere = (
            self._first(worker_group),
            self.nodes.heard(PATIENCE) if self.nodes else None,
        )
        self.failure = elsewhere or own
        if elsewhere is not None:
            return self._follow(elsewhere, worker_group)
        if own is not None:
            self._tell(own)
        early = own is None and self._left_early()
        with _deadline() if own is not None else _none():
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

    def _follow(self, elsewhere: Failure, worker_group: WorkerGroup) -> RunResult:
        """Fail the ranks here, as one elsewhere has failed."""
        assert self.nodes is not None
        self.nodes.take()
        if elsewhere.lost:
            self._remaining_restarts = 0  # there is nobody to run the job again with
        return RunResult(WorkerState.FAILED)

    def _tell(self, own: Failure) -> None:
        if self.nodes is not None:
            self.nodes.tell(own)

    def _shutdown(self, *how: Any, **named: Any) -> None:
        with _deadline():
            super()._shutdown(*how, **named)

    def _exit_barrier(self) -> None:
        """Wait until the ranks of all nodes have ended, or one has failed.

        The lines between launchers tell when a node is lost; torch's store does not.
        """
        if self.nodes is None:
            return
        self.nodes.done()
        while not self.nodes.over and self.failure is None:
            time.sleep(self._worker_group.spec.monitor_interval)
            self.failure = self.nodes.heard(0)
        self.nodes.take()

    # ---- how the ranks of this node have ended

    def _first(self, worker_group: WorkerGroup) -> Failure | None:
        """Return the first failure of a rank here, None if none has failed.

        Of ranks that failed within one interval it is one that was killed: others fail because
        that one is gone.
        """
        failed = [(rank, code) for rank, code in self._codes().items() if code]
        if not failed:
            return None
        local_rank, code = min(failed, key=lambda one: one[1] >= 0)
        return Failure(worker_group.workers[local_rank].global_rank, local_rank, code)

    def _left_early(self) -> bool:
        """Return whether all ended well, some by `os._exit(0)`, which gives torch no word of it."""
        codes = self._codes()
        ranks = range(self.signals.ranks)
        return bool(codes) and all(
            rank in codes or self.signals.code_of(rank) == 0 for rank in ranks
        )

    def _codes(self) -> dict[int, int]:
        """Return the exit codes of the ranks that have ended, and leave the wait to torch."""
        assert self._pcontext is not None
        found = {}
        for local_rank, pid in self._pcontext.pids().items():
            try:
                end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                found[local_rank] = 0  # torch has waited for it, and says by itself if it failed
                continue
            if end is not None:
                found[local_rank] = (
                    end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
                )
        return found


@contextmanager
def _deadline() -> Iterator[None]:
    """Kill the ranks that do not end soon on a SIGTERM, for which torch waits half a minute."""
    timer = threading.Timer(ALONE, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # ranks are forked without threads around


@contextmanager
def _none() -> Iterator[None]:
    yield


def kill() -> None:
    """Kill all ranks of this node, at once."""
    for child in multiprocessing.active_children():
        child.kill()
