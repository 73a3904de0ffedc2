"""Start this node's ranks through torch's elastic agent, forked from this process."""

from __future__ import annotations

import logging
import multiprocessing.context
import multiprocessing.process
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import Any, TextIO

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.numa.binding import AffinityMode, NumaOptions

from autoddp import worker
from autoddp.errors import AutoDDPError, BadInput
from autoddp.launching import rendezvous, streams
from autoddp.launching.signals import Signals
from autoddp.options import Options
from autoddp.report import PREFIX
from autoddp.worker import Job

STARTED = 60.0  # seconds in which all ranks of a node are forked
INTERVAL = 0.02  # seconds between two looks at the ranks


@dataclass(frozen=True)
class Failure:
    """The first rank that failed, and its exit code; negative: minus the signal that ended it."""

    rank: int
    local_rank: int
    code: int


@dataclass
class Parent:
    """What a forked rank must put back to be as one process that python started."""

    job: Job
    signals: Signals
    process: BaseProcess
    stdin: TextIO | None
    logging: int
    gate: Barrier


class Signalled(Exception):
    """A signal has ended the ranks: they are not started again."""


class Starting(DefaultLogsSpecs):
    """The agent's logs are none; it asks for them after the rendezvous, just before it forks."""

    def __init__(self, ready: Callable[[], None]) -> None:
        super().__init__(log_dir=os.devnull)
        self.ready = ready

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Nowhere."""
        self.ready()
        return super().reify(envs)


def start(job: Job, signals: Signals) -> Failure | None:
    """Run the ranks of this node to their end; the first failure, if any."""
    process, gate = multiprocessing.current_process(), get_context("fork").Barrier(signals.ranks)
    parent = Parent(job, signals, process, sys.stdin, logging.root.manager.disable, gate)
    starts = 0

    def ready() -> None:
        nonlocal starts
        if starts:
            # a rank that was killed may hold the lock of the old one
            parent.gate = get_context("fork").Barrier(signals.ranks)
            again(job, signals, starts)
        else:
            job.logs.make()
            signals.listen()
        job.private.make()
        starts += 1

    launch = elastic_launch(config(job.options, signals.ranks, ready), enter)
    streams.flush()
    # multiprocessing would close a child's stdin, and finds none to close
    sys.stdin = None
    signals.wait()
    logging.disable(logging.CRITICAL)  # the agent's own words; the failure is told by us
    try:
        launch(parent)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return Failure(rank, failure.local_rank, failure.exitcode)
    except Signalled:
        return Failure(0, 0, 1)
    finally:
        logging.disable(parent.logging)
        sys.stdin = parent.stdin
        signals.leave()
        job.private.clear()
    return None


def again(job: Job, signals: Signals, times: int) -> None:
    """All ranks have ended since one failed, and start once more from the beginning of the script.

    Raises:
        Signalled: It was a signal to this job that ended them.
    """
    if signals.ending is not None:
        raise Signalled
    failed = signals.restart()
    if job.options.quiet:
        return
    what = "a rank was killed"
    if failed is not None:
        local_rank, code = failed
        rank = job.options.node_rank * signals.ranks + local_rank
        what = job.logs.failure(rank, f"ended with exit code {code}")
    line = f"{PREFIX} the job is run again ({times} of {job.options.max_restarts})"
    print(f"{what if what.startswith(PREFIX) else f'{PREFIX} {what}'}\n{line}", file=sys.stderr, flush=True)


def config(options: Options, ranks: int, ready: Callable[[], None]) -> LaunchConfig:
    """The agent's: one node meets by itself, several at the master's address, as with torchrun."""
    made = LaunchConfig(
        min_nodes=options.nnodes,
        max_nodes=options.nnodes,
        nproc_per_node=ranks,
        start_method="fork",
        run_id="autoddp",
        max_restarts=options.max_restarts,
        monitor_interval=INTERVAL,
        logs_specs=Starting(ready),
        # ours, see `signals`: the agent's own end the job whatever the script does about them
        signals_to_handle="",
        # with None, torch would look for an accelerator, and so touch CUDA in this process
        numa_options=NumaOptions(AffinityMode.NODE),
        **meeting(options),
    )
    made.numa_options = None
    return made


def meeting(options: Options) -> dict[str, Any]:
    """Where the nodes meet."""
    if options.nnodes == 1:
        return {
            "rdzv_backend": rendezvous.BACKEND,
            "rdzv_endpoint": f"{rendezvous.HOST}:{options.master_port or 0}",
        }
    return {
        "rdzv_backend": "static",
        "rdzv_endpoint": f"{options.master_addr}:{options.master_port}",
        "rdzv_configs": {"rank": options.node_rank},
    }


def enter(parent: Parent) -> None:
    """In the fork: be as a process of its own, then be a rank."""
    local_rank = int(os.environ["LOCAL_RANK"])
    parent.signals.arrive(local_rank)
    # None may ask the store for anything before all are forked: its server, a thread of the
    # parent, then looks up an address, and a rank forked meanwhile finds libc's resolver locked.
    parent.gate.wait(STARTED)
    logging.disable(parent.logging)
    sys.stdin = parent.stdin
    # to the script this is the main process, with no start method chosen yet
    multiprocessing.process._current_process = parent.process  # type: ignore[attr-defined]
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
    multiprocessing.context._default_context._actual_context = None  # type: ignore[attr-defined]
    try:
        code = worker.run(parent.job)
    except AutoDDPError as error:
        print(f"{PREFIX} {error}", file=sys.stderr)
        code = 2 if isinstance(error, BadInput) else 1
    except BaseException:
        traceback.print_exc()  # a fault of ours, or the network's; the agent's words are off
        code = 1
    parent.signals.ended(local_rank, code)
    if code:
        worker.leave(code)
