"""Torch's elastic agent for the ranks of this node, which finds the first failure on all nodes.

It overrides methods that torch documents for subclasses.
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

GRACE = 2.0  # seconds to wait for a failure here, after one on another node
HEALTHY = RunResult(WorkerState.HEALTHY)
FAILED = RunResult(WorkerState.FAILED)


class JobOver(Exception):
    """Raised to end a job without a restart, whatever `--max-restarts` is."""


class NoLogs(DefaultLogsSpecs):
    """The absence of log files of torch's own, as ranks use this process's streams."""

    def __init__(self) -> None:
        super().__init__(log_dir=os.devnull)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return no file to follow, as torch's threads for those take 0.2 s to end."""
        return replace(super().reify(envs), tee_stdouts={}, tee_stderrs={})


class NodeAgent(LocalElasticAgent):
    """The agent of one node, which starts its ranks and waits for them."""

    def __init__(
        self,
        spec: WorkerSpec,
        ready: Callable[[int], None],
        signals: LauncherSignals,
        hang_timeout: float,
    ) -> None:
        super().__init__(spec, NoLogs(), start_method="fork")
        self._rdzv_handler: Any = None  # torch 2.6 would end the job once one node's ranks end
        # `ready` is called with the number of the attempt, just before ranks are forked
        self.ready, self.signals, self.hang_timeout = ready, signals, hang_timeout
        # of this attempt; while ranks start, of the previous one
        self.failure: Failure | None = None
        self.nodes: NodeLinks | None = None  # the link to other nodes, if there are any
        self.attempt = -1
        self._pids: dict[int, int] = {}  # of this node's ranks, by local rank
        self._ended: RunResult | None = None  # set once this node's ranks have succeeded

    # ---- start of an attempt

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
            self.nodes.stop()
            if self.failure is None or self.failure.code != BAD_INPUT:
                self.failure = self.nodes.failure(0) or self.failure

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.attempt += 1
        self.ready(self.attempt)
        self._pids = super()._start_workers(worker_group)
        self.signals.listen()  # again, as torch up to 2.9 sets handlers, even of ignored signals
        self.failure = None
        if self.nodes is not None:
            self.nodes.start()
        return self._pids

    # ---- while ranks run

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self.nodes is None:
            return self._monitor_own(worker_group)
        elsewhere = self.nodes.failure(GRACE if self._ended is None else 0)
        if elsewhere is not None:
            self.failure = elsewhere
            if elsewhere.lost:
                raise JobOver  # a lost node cannot restart
            return FAILED
        if self._ended is not None:
            return self._ended if self.nodes.all_succeeded else HEALTHY
        result = self._monitor_own(worker_group)
        if result.state == WorkerState.SUCCEEDED:
            self._ended = result
            self.nodes.report_success()
            return HEALTHY
        return result

    def _monitor_own(self, worker_group: WorkerGroup) -> RunResult:
        """Return the state of the ranks of this node, and report a failure to the other nodes."""
        codes = exit_codes(self._pids)
        failed = [(local_rank, code) for local_rank, code in codes.items() if code]
        if failed:
            # of several failures prefer a killed rank, which makes the others fail
            local_rank, code = min(failed, key=lambda one: one[1] >= 0)
            rank = worker_group.workers[local_rank].global_rank
            self._report(Failure(rank, local_rank, code))
        with deadline() if failed else nullcontext():
            result = super()._monitor_workers(worker_group)
        if result.failures and not failed:  # after `exit_codes`
            rank, one = min(result.failures.items(), key=lambda one: one[1].exitcode >= 0)
            self._report(Failure(rank, one.local_rank, one.exitcode))
        # ranks that end by `os._exit(0)` give torch no return value
        ranks = range(self.signals.ranks)
        succeeded = codes and all(n in codes or self.signals.code_of(n) == 0 for n in ranks)
        if succeeded and result.state == WorkerState.HEALTHY:
            self._shutdown()
            ended = {worker.global_rank: None for worker in worker_group.workers}
            return RunResult(WorkerState.SUCCEEDED, ended)
        return result

    def _report(self, failure: Failure) -> None:
        self.failure = failure
        if self.nodes is not None:
            self.nodes.report(failure)

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:
        with deadline():
            super()._shutdown(*args, **kwargs)

    def _exit_barrier(self) -> None:
        """Do nothing, as `_monitor_workers` has waited for the ranks of all nodes.

        `NodeLinks` notices a lost node; torch's barrier would not.
        """


def exit_codes(pids: dict[int, int]) -> dict[int, int]:
    """Return the exit codes of the ranks that have ended, without reaping them."""
    codes = {}
    for local_rank, pid in pids.items():
        try:
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            codes[local_rank] = 0  # torch has reaped it, and reports its failure
            continue
        if end is not None:
            codes[local_rank] = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    return codes


@contextmanager
def deadline() -> Iterator[None]:
    """Kill ranks that do not end soon after SIGTERM, for which torch waits 30 s."""
    timer = threading.Timer(ALONE, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # ranks must be forked without other threads
