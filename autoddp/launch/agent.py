"""Start this node's ranks with torch's elastic agent, as forks of this process."""

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

from autoddp import torch_internals
from autoddp.comm.place import HERE
from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch.failure import Failure, say, words
from autoddp.launch.node_agent import JobOver, NodeAgent
from autoddp.launch.rendezvous import FixedNodes
from autoddp.process import job_folder, streams, worker
from autoddp.process.launcher_signals import LauncherSignals
from autoddp.process.script import INTERRUPTED
from autoddp.process.worker import Job
from autoddp.report import PREFIX

START_TIMEOUT = 60.0  # seconds in which all ranks of a node must be forked
# the longest path of a folder for unix sockets, with multiprocessing's names
MAX_SOCKET_FOLDER = 107 - len("/listener-12345678")
INTERVAL = 0.02  # seconds between two checks of the ranks


@dataclass
class ParentState:
    """The state of the launcher that a forked rank restores, to be like a process of `python`."""

    job: Job
    signals: LauncherSignals
    process: BaseProcess
    stdin: TextIO | None
    logging: int
    gate: Barrier
    faults: bool  # whether faulthandler was enabled


def start(job: Job, signals: LauncherSignals) -> Failure | None:
    """Run the ranks of this node to their end; return the first failure, if any."""
    process, gate = multiprocessing.current_process(), get_context("fork").Barrier(signals.ranks)
    level, faults, options = logging.root.manager.disable, faulthandler.is_enabled(), job.options
    parent = ParentState(job, signals, process, sys.stdin, level, gate, faults)

    def ready(attempt: int) -> None:
        if not attempt:
            job.logs.make()
            signals.listen()
        elif signals.ending is not None:
            raise JobOver
        else:
            signals.restart()
            # a killed rank may still hold the lock of the old barrier
            parent.gate = get_context("fork").Barrier(signals.ranks)
            if not options.quiet and agent.failure is not None:
                print(f"{job.flag.end()}{words(agent.failure, job.logs)}", file=sys.stderr)
            say(options, f"restarting the job ({attempt} of {options.max_restarts})")
        job_folder.make()

    streams.flush()
    # otherwise multiprocessing would close stdin in a child
    sys.stdin = None
    signals.wait()
    logging.disable(logging.CRITICAL)  # mute torch's agent, as autoddp prints the failure
    # use the handlers of `signals`, as torch's end the job at once
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    try:
        agent = NodeAgent(spec(parent), ready, signals, options.hang_timeout)
        with suppress(JobOver), torch_internals.agent_hands_signals_to(signals.pass_on):
            agent.run()
        agent.take_over_failure()
    finally:
        logging.disable(parent.logging)
        sys.stdin = parent.stdin
        signals.leave()
        job_folder.clear()
    return agent.failure


def spec(parent: ParentState) -> WorkerSpec:
    """Return what the agent runs, and the address at which the launchers of nodes connect."""
    options = parent.job.options
    several = options.nnodes > 1
    return WorkerSpec(
        role="default",
        local_world_size=parent.signals.ranks,
        rdzv_handler=FixedNodes(options),
        entrypoint=enter,
        args=(parent,),
        max_restarts=options.max_restarts,
        monitor_interval=INTERVAL,
        master_addr=options.master_addr if several else None,
        master_port=options.master_port if several else None,
    )


def enter(parent: ParentState) -> None:
    """Run a rank in this fork; torch only sees its exit code."""
    local_rank = int(os.environ["LOCAL_RANK"])
    try:
        code = run_rank(parent, local_rank)
    except KeyboardInterrupt:
        code = INTERRUPTED  # before the script begins, or after it ends
    except AutoDDPError as error:
        print(f"{PREFIX} {error}", file=sys.stderr)
        code = 2 if isinstance(error, BadInput) else 1
    except BaseException:
        traceback.print_exc()  # an error in autoddp or the network; the agent prints nothing
        code = 1
    parent.signals.ended(local_rank, code)
    if code:
        worker.leave(code)


def run_rank(parent: ParentState, local_rank: int) -> int:
    """Run this rank like a process started by `python`; return its exit code."""
    parent.signals.arrive(local_rank)
    # No rank may use the store before all are forked: its server, a thread of the parent, then
    # resolves an address, and a rank forked meanwhile would find the resolver's lock held.
    parent.gate.wait(START_TIMEOUT)
    logging.disable(parent.logging)
    if not parent.faults:
        # torch's agent enables it, and its own frames would fill most of the output
        faulthandler.disable()
    sys.stdin = parent.stdin
    # the script sees the main process, without a start method
    multiprocessing.process._current_process = parent.process  # type: ignore[attr-defined]
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
    multiprocessing.context._default_context._actual_context = None  # type: ignore[attr-defined]
    # a folder for sockets of worker processes, which killed workers leave behind
    assert HERE.private is not None
    sockets = os.path.join(HERE.private, f"w{local_rank}")
    if len(os.fsencode(sockets)) <= MAX_SOCKET_FOLDER:
        os.mkdir(sockets)
        parent.process._config["tempdir"] = sockets  # type: ignore[attr-defined]
    return worker.run(parent.job)
