"""Start this node's ranks through torch's elastic agent, forked from this process."""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing.context
import multiprocessing.process
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import TextIO

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousHandler

from autoddp import torch_internals
from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch import changing_nodes
from autoddp.launch.elastic import Agent, JobOver
from autoddp.launch.failure import Failure, words
from autoddp.launch.fixed_nodes import FixedNodes
from autoddp.launch.rendezvous import OneNode
from autoddp.options import Options
from autoddp.process import streams, worker
from autoddp.process.launcher_signals import LauncherSignals, Signalled
from autoddp.process.script import INTERRUPTED
from autoddp.process.worker import Job
from autoddp.report import PREFIX

STARTED = 60.0  # seconds in which all ranks of a node are forked
# of a folder for unix sockets, as multiprocessing names them
LONGEST = 107 - len("/listener-12345678")
INTERVAL = 0.02  # seconds between two looks at the ranks


@dataclass
class ParentState:
    """The launcher's state that a forked rank puts back, to be as a process that python started."""

    job: Job
    signals: LauncherSignals
    process: BaseProcess
    stdin: TextIO | None
    logging: int
    gate: Barrier
    faults: bool  # whether a segmentation fault shows Python's stack


def start(job: Job, signals: LauncherSignals) -> Failure | None:
    """Run the ranks of this node to their end; return the first failure, if any."""
    process, gate = multiprocessing.current_process(), get_context("fork").Barrier(signals.ranks)
    faults = faulthandler.is_enabled()
    parent = ParentState(
        job, signals, process, sys.stdin, logging.root.manager.disable, gate, faults
    )

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
    # the handlers are ours, see `signals`: torch's end the job at once
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    try:
        agent = Agent(spec(parent), ready, job.options, signals)
        with suppress(JobOver), torch_internals.agent_hands_signals_to(signals.pass_on):
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
    """Get ready for, and say, that all ranks start once more from the beginning of the script.

    Raises:
        Signalled: A signal to this job has ended the ranks.
    """
    signals.check()
    signals.restart()
    if job.options.quiet:
        return
    if agent.failure is not None and not agent.failure.lost:  # of a lost node was told at once
        print(f"{job.flag.end()}{words(agent.failure, job.logs)}", file=sys.stderr)
    print(f"{PREFIX} {agent.again()}", file=sys.stderr, flush=True)


def spec(parent: ParentState) -> WorkerSpec:
    """Return what the agent runs."""
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
        master_addr=options.master_addr if several and not options.changes else None,
        master_port=options.master_port if several and not options.changes else None,
    )


def meeting(options: Options, signals: LauncherSignals) -> RendezvousHandler:
    """Return the rendezvous at which the launchers of the job's nodes find each other.

    One node meets by itself, several at the master's address.
    """
    if options.nnodes == 1:
        return OneNode(options.master_port or 0)
    if options.changes:
        return changing_nodes.create(options, signals.check)
    return FixedNodes(options)


def enter(parent: ParentState) -> None:
    """Be a rank in this fork; torch sees no more of the rank than its exit code."""
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
    """Run this rank as if it were a process of its own; return its exit code."""
    parent.signals.arrive(local_rank)
    # No rank may ask the store for anything before all are forked: its server, a thread of the
    # parent, then looks up an address, and a rank forked meanwhile finds libc's resolver locked.
    parent.gate.wait(STARTED)
    logging.disable(parent.logging)
    if not parent.faults:
        # torch's agent enables it, and its own frames would be most of what is shown
        faulthandler.disable()
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
