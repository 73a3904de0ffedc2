"""The life of one rank: it joins the others, opens a session, runs the script, ends with them."""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autoddp import allocator
from autoddp.comm.group import Group
from autoddp.comm.in_order import WAITS
from autoddp.comm.place import HERE
from autoddp.comm.world import World
from autoddp.effects.run import Run
from autoddp.errors import AutoDDPError, BadInput
from autoddp.options import Options
from autoddp.own_hooks import own_hooks
from autoddp.process import joining, launcher_signals, streams
from autoddp.process.devices import Devices
from autoddp.process.own_ddp import Kind, LaunchForm
from autoddp.process.script import Script, finish, forget
from autoddp.process.session import member
from autoddp.process.streams import Logs
from autoddp.report import PREFIX, Report
from autoddp.report.begun import SharedFlag

GRACE = 5.0  # seconds that a rank above 0 that failed leaves to rank 0 to fail, and say so, too
LAST = timedelta(minutes=1)  # in which the others leave a rank 0 that hosts the store
KILLED = timedelta(seconds=10)  # the same after a failure, by which some may have been killed
TICK = 0.02
ALLOCATE = "can't allocate memory"  # in torch's error on CPUs
NO_MEMORY = "its data is not allocated yet"  # torch's words for a tensor without memory of its own
FITS = (
    "memory was too small; --parameters sharded divides parameters, gradients and the optimizer's "
    "states among the ranks"
)
WITHOUT_DISPATCH = (
    "C++ code that torch does not dispatch cannot read a batch that ranks share; "
    "run with --placement replicated"
)


@dataclass(frozen=True)
class Job:
    """The instructions for each rank of this node."""

    script: Script
    options: Options
    devices: Devices
    own: LaunchForm
    logs: Logs
    random_state: Any  # of Python's generator, which a forked child would reseed
    flag: SharedFlag = field(default_factory=SharedFlag)


def run(job: Job) -> int:
    """Be the rank that torchrun's variables name; return the exit code after the script's end."""
    world = World.read(os.environ)
    set_up(world)
    if job.own.kind is not Kind.VIEW:
        return by_itself(job, world)
    random.setstate(job.random_state)
    if world.rank:
        streams.redirect(job.logs.of(world.rank))
    joining.take_device(world, job.devices)
    report = Report(world.rank == 0 and not job.options.quiet, job.options.strict, flag=job.flag)
    this = os.getpid()
    with member(world, job.options, job.devices, report, job.script) as run:
        group = run.group
        code = job.script.run(job.options.verbose, run.ended)
        if not code and os.getpid() == this:
            group.conclude()
        elif code and (line := advice(run)):
            # a rank's own log is shown if it is the first to fail
            print(f"{PREFIX} {line}", file=sys.stderr)
        code = finish(code)
        if os.getpid() != this:
            leave(code)  # a child that the script forked has ended; the rank goes on
        group.context.ending = True
        forget()
        report.exit = code
    launcher_signals.by_default()  # nothing of the script's is left that a signal could call
    end(group, code)
    return code


def advice(run: Run) -> str:
    """Return a line on what would have kept the script from its error; empty if none is known."""
    error = getattr(sys, "last_value", None)
    if run.world.world_size == 1 or run.options.view == "local":
        return ""
    short = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or ALLOCATE in str(error)
    if short and not run.view.sharded_parameters:
        return FITS
    unread = isinstance(error, RuntimeError) and NO_MEMORY in str(error)
    shared = run.report.of("loaders") or run.report.of("modules")
    return WITHOUT_DISPATCH if unread and shared and not run.view.replicates else ""


def by_itself(job: Job, world: World) -> int:
    """Be a rank of a script that does its own DDP, as torchrun would start it."""
    if world.world_size > world.local_world_size:
        joining.set_interface(world)
    if "numpy.random" in sys.modules:
        # a fork has its parent's generator; Python's reseeds itself
        sys.modules["numpy.random"].seed()
    HERE.world = world
    report = Report(world.rank == 0 and not job.options.quiet)
    report.say(job.own.message(job.script.name))
    script = replace(job.script, args=job.own.arguments(job.script.args, world.local_rank))
    if job.options.own_ddp == "auto" and world.world_size > 1:  # else the user has said so
        expect_group(job.own.line, world.world_size)
    return finish(script.run())


def expect_group(line: str, size: int) -> None:
    """Have the first optimizer step raise BadInput if the ranks share no process group then."""
    looked = False

    def look(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal looked
        if not looked and not (dist.is_initialized() and dist.get_world_size() > 1):
            raise BadInput(
                f"init_process_group ({line}) was not called before the first step: each of "
                f"{size} processes would train by itself; give the script the arguments that "
                "it takes to be distributed, or --own-ddp no for the numbers of one process"
            )
        looked = True

    with own_hooks():
        register_optimizer_step_pre_hook(look)


def joined(script: Script, options: Options, own: LaunchForm) -> int:
    """Be a rank that another launcher has started, and return its exit code.

    Raises:
        BadInput: The script would start ranks of its own on each rank.
    """
    world = World.read(os.environ)
    if own.kind is Kind.ONCE and world.world_size > 1:
        raise BadInput(
            f"{script.name} starts its ranks itself ({own.line}), but another launcher has "
            f"started {world.world_size} processes of it already; start it by autoddp run or by "
            "python"
        )
    found, logs = joining.find_devices(), Logs(options.log_dir)
    logs.make()
    job = Job(script, options, found, own, logs, random.getstate())
    terminal = os.dup(2)
    try:
        code = run(job)
    except AutoDDPError:
        logs.remove()
        if world.local_rank == 0:  # one line for each node
            os.dup2(terminal, 2)
        raise
    if code and logs.of(world.rank).exists():
        line = logs.failure(world.rank, f"ended with exit code {code}")
        os.write(terminal, f"{line}\n".encode())
    else:
        logs.remove()
    return code


def set_up(world: World) -> None:
    """Share the cores, and keep the memory that tensors leave.

    A fork must do it first, as its inherited thread pool has no threads.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    share = max(1, len(os.sched_getaffinity(0)) // world.local_world_size)
    torch.set_num_threads((asked.isdecimal() and int(asked)) or share)
    allocator.keep_memory(os.environ)


def end(group: Group, code: int) -> None:
    """Leave the job, in an order in which the user sees one failure: rank 0's, if it fails too."""
    world, store = group.world, group.store
    group.leave()  # ranks that wait for an effect of this one are notified
    try:
        # before this rank reports its end, after which the store may go
        failed = bool(world.rank and code) and _fails_too(store)
        store.set(f"ended/{world.rank}", str(code))
        if world.rank == 0 and not world.agent_store:
            store.wait([f"ended/{n}" for n in range(world.world_size)], KILLED if code else LAST)
        elif failed and world.rank == world.local_rank:
            time.sleep(GRACE)  # rank 0's launcher sees rank 0 end, and then ends this rank
    except dist.DistError:
        pass  # the store has ended with its host, or a rank did not end in time


def _fails_too(store: Any) -> bool:
    """Return whether rank 0 reports that it failed, too; not if it waits for another launcher."""
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline and not store.check([f"{WAITS}/0"]):
        if store.check(["ended/0"]):
            return bool(store.get("ended/0") != b"0")
        time.sleep(TICK)
    return False


def leave(code: int) -> NoReturn:
    """End this process at once, as torch's own teardown with gloo aborts now and then."""
    streams.flush()
    os._exit(code)
