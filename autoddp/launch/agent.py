"""Start this node's ranks through torch's elastic agent, forked from this process."""

from __future__ import annotations

import faulthandler
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
from typing import TextIO

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch import membership, rendezvous
from autoddp.launch.changing import Changing
from autoddp.launch.elastic import Agent
from autoddp.launch.failure import Failure
from autoddp.options import Options
from autoddp.process import streams, worker
from autoddp.process.launcher_signals import LauncherSignals, Signalled
from autoddp.process.script import INTERRUPTED
from autoddp.process.worker import Job
from autoddp.report import PREFIX

STARTED = 60.0  # seconds in which all ranks of a node are forked
LONGEST = 107 - len("/listener-12345678")  # a folder for unix sockets, as multiprocessing names them
INTERVAL = 0.02  # seconds between two looks at the ranks


@dataclass
class ParentState:
    """What a forked rank must put back to be as one process that python started."""

    job: Job
    signals: LauncherSignals
    process: BaseProcess
    stdin: TextIO | None
    logging: int
    gate: Barrier
    faults: bool  # whether a segmentation fault shows Python's stack


class Starting(DefaultLogsSpecs):
    """The agent's logs are none; it asks for them after the rendezvous, just before it forks."""

    def __init__(self, ready: Callable[[], None]) -> None:
        super().__init__(log_dir=os.devnull)
        self.ready = ready

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Nowhere."""
        self.ready()
        return super().reify(envs)


def start(job: Job, signals: LauncherSignals) -> Failure | None:
    """Run the ranks of this node to their end; the first failure, if any."""
    process, gate = multiprocessing.current_process(), get_context("fork").Barrier(signals.ranks)
    faults = faulthandler.is_enabled()
    parent = ParentState(job, signals, process, sys.stdin, logging.root.manager.disable, gate, faults)

    def ready() -> None:
        if agent.attempt:
            # a rank that was killed may hold the lock of the old one
            parent.gate = get_context("fork").Barrier(signals.ranks)
            again(job, signals, agent)
        else:
            job.logs.make()
            signals.listen()
        job.private.make()

    streams.flush()
    # multiprocessing would close a child's stdin, and finds none to close
    sys.stdin = None
    signals.wait()
    logging.disable(logging.CRITICAL)  # the agent's own words; the failure is told by us
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""  # ours, see `signals`: torch's end the job at once
    try:
        kind = Changing if job.options.changes else Agent
        agent = kind(spec(parent), Starting(ready), job.options, signals)
        agent.run()
    except Signalled:
        return Failure(0, 0, 1)
    finally:
        logging.disable(parent.logging)
        sys.stdin = parent.stdin
        signals.leave()
        job.private.clear()
    return agent.failure


def again(job: Job, signals: LauncherSignals, agent: Agent) -> None:
    """All ranks have ended since one failed, and start once more from the beginning of the script.

    Raises:
        Signalled: It was a signal to this job that ended them.
    """
    signals.check()
    signals.restart()
    if job.options.quiet:
        return
    if agent.failure is not None:
        print(words(agent.failure, job.logs), file=sys.stderr)
    print(f"{PREFIX} {agent.again()}", file=sys.stderr, flush=True)


def words(failure: Failure, logs: streams.Logs) -> str:
    """Who failed, and the end of its log."""
    if failure.lost:
        return f"{PREFIX} {failure.where} is lost: {failure.lost}"
    if failure.where:
        return f"{PREFIX} {failure.who} {failure.what}; its log is there"
    return logs.failure(failure.rank, failure.what)


def spec(parent: ParentState) -> WorkerSpec:
    """What the agent runs; one node meets by itself, several at the master's address, as with torchrun."""
    options, ranks = parent.job.options, parent.signals.ranks
    several = options.nnodes > 1
    return WorkerSpec(
        role="default",
        local_world_size=ranks,
        rdzv_handler=meeting(options, parent.signals),
        entrypoint=enter,
        args=(parent,),
        max_restarts=options.max_restarts,
        monitor_interval=INTERVAL,
        master_addr=options.master_addr if several else None,
        master_port=options.master_port if several and not options.changes else None,
    )


def meeting(options: Options, signals: LauncherSignals) -> RendezvousHandler:
    """How the launchers of the job's nodes find each other."""
    if options.changes:
        return membership.create(options, signals.check)
    several = options.nnodes > 1
    return get_rendezvous_handler(
        RendezvousParameters(
            backend="static" if several else rendezvous.BACKEND,
            endpoint=f"{options.master_addr if several else rendezvous.HOST}:{options.master_port or 0}",
            run_id="autoddp",
            min_nodes=options.nnodes,
            max_nodes=options.nnodes,
            rank=options.node_rank,
        )
    )


def enter(parent: ParentState) -> None:
    """In the fork: be a rank; what torch would see of it is its exit code."""
    local_rank = int(os.environ["LOCAL_RANK"])
    try:
        code = be(parent, local_rank)
    except KeyboardInterrupt:
        code = INTERRUPTED  # before the script's first line, or after its last
    except AutoDDPError as error:
        print(f"{PREFIX} {error}", file=sys.stderr)
        code = 2 if isinstance(error, BadInput) else 1
    except BaseException:
        traceback.print_exc()  # a fault of ours, or the network's; the agent's words are off
        code = 1
    parent.signals.ended(local_rank, code)
    if code:
        worker.leave(code)


def be(parent: ParentState, local_rank: int) -> int:
    """As a process of its own, a rank; its exit code."""
    parent.signals.arrive(local_rank)
    # None may ask the store for anything before all are forked: its server, a thread of the
    # parent, then looks up an address, and a rank forked meanwhile finds libc's resolver locked.
    parent.gate.wait(STARTED)
    logging.disable(parent.logging)
    if not parent.faults:
        faulthandler.disable()  # torch's agent enables it, and its own frames would be most of what is shown
    sys.stdin = parent.stdin
    # to the script this is the main process, with no start method chosen yet
    multiprocessing.process._current_process = parent.process  # type: ignore[attr-defined]
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
    multiprocessing.context._default_context._actual_context = None  # type: ignore[attr-defined]
    # the sockets of its worker processes, which stay where one is killed
    assert parent.job.private.folder is not None
    sockets = os.path.join(parent.job.private.folder, f"w{local_rank}")
    if len(os.fsencode(sockets)) <= LONGEST:
        os.mkdir(sockets)
        parent.process._config["tempdir"] = sockets  # type: ignore[attr-defined]
    return worker.run(parent.job)
