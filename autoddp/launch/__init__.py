"""Start this node's ranks, wait for them, report one failure, and return one exit code."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autoddp.comm.place import HERE
from autoddp.comm.world import World, give
from autoddp.errors import BadInput
from autoddp.launch import schedulers
from autoddp.launch.failure import say as say
from autoddp.launch.failure import words
from autoddp.launch.imports import import_torch, imports_for_all
from autoddp.options import Options
from autoddp.process import devices, network, own_ddp
from autoddp.process.script import Script
from autoddp.process.streams import Logs

if TYPE_CHECKING:
    from autoddp.patching import Feature

PORT = 29500  # the default of torchrun
MAX_RANKS_PER_CORE = 32  # with more, a job would mostly switch between ranks


def run(script: Script, options: Options) -> int:
    """Run the script with these options; return the exit code of the command.

    Raises:
        BadInput: The options cannot be used here; nothing was started.
    """
    options = schedulers.resolve(os.environ, options)
    world = launched(os.environ)
    script.find()
    check(options)
    own = own_ddp.of(script, options.own_ddp)
    if world is not None:
        import_torch(several=world.local_world_size < world.world_size)
        from autoddp.process import worker

        worker.leave(worker.joined(script, options, own))
    if own.kind is own_ddp.Kind.ONCE:
        return alone(script, options, own.message(script.name))
    ready = prepare(options)
    single = (ready.nproc, ready.nnodes, ready.max_restarts) == (1, 1, 0)
    if single and own.kind is own_ddp.Kind.VIEW:
        return alone(script, ready, "1 rank: the script runs as it is")
    return start(script, ready, own)


def launched(environ: Mapping[str, str]) -> World | None:
    """Return the `World` of a rank that another launcher started; None if none did.

    Raises:
        BadInput: Some of the launcher's variables are set, but not all.
    """
    started = {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & set(environ)
    return World.read(environ) if started else None


def prepare(options: Options) -> Options:
    """Fill in options that were not given, and check them against this machine.

    Raises:
        BadInput: The options cannot be used on this machine.
    """
    nproc = options.nproc or max(1, len(devices.there(os.environ).names))
    port = options.master_port
    if options.nnodes > 1:
        if options.master_addr is None:
            raise BadInput(
                f"--nnodes is {options.nnodes} without --master-addr; give the address of node 0, "
                "the same on every node"
            )
        if options.node_rank is None:
            raise BadInput(
                f"--nnodes is {options.nnodes} without --node-rank; give --node-rank 0 to "
                f"{options.nnodes - 1}, another number on each node (srun, mpirun and a PyTorchJob "
                "set it, but SLURM_NODEID, OMPI_COMM_WORLD_RANK and RANK are not set)"
            )
        network.resolve(options.master_addr)
        port = port or PORT
    if port is not None and not options.node_rank:
        network.check_free(port)
    return replace(options, nproc=nproc, master_port=port)


def features() -> Sequence[type[Feature]]:
    """Return the classes of all features; this imports torch."""
    from autoddp.process.features import FEATURES

    return FEATURES


def check_disabled(options: Options) -> None:
    """Check the names of `--disable`.

    Raises:
        BadInput: There is no feature of that name.
    """
    known = [feature.name for feature in features()] if options.disable else []
    for name in options.disable:
        if name not in known:
            raise BadInput(f"--disable is {name!r}; it takes {', '.join(known)}")


def check_ranks(nproc: int | None) -> None:
    """Check that this machine can run this number of ranks.

    Raises:
        BadInput: There are too many ranks for the cores of this machine.
    """
    most = MAX_RANKS_PER_CORE * (cores := len(os.sched_getaffinity(0)))
    if nproc is not None and nproc > most:
        raise BadInput(f"--nproc is {nproc}, but {cores} cores can run {most} ranks at most")


def check(options: Options) -> None:
    """Check `--disable`, `--nproc`, `--report` and `--log-dir`, and make the folders.

    Raises:
        BadInput: An option has a wrong value, or a folder cannot be made.
    """
    check_disabled(options)
    check_ranks(options.nproc)
    report, logs = options.report or "", options.log_dir or ""
    if os.path.isdir(report):
        raise BadInput(f"--report is {report}, which is a folder; give a file in it")
    for name, path, folder in (
        ("--report", report, os.path.dirname(report)),
        ("--log-dir", logs, logs),
    ):
        try:
            os.makedirs(folder or ".", exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"{name} is {path}, which cannot be written ({error.strerror}); "
                "give a path in a folder that is writable"
            ) from None


def alone(script: Script, options: Options, why: str) -> int:
    """Run the script unchanged in this process; return its exit code."""
    say(options, why)
    HERE.world = World()  # so that `@distributed` starts no ranks in it
    return script.run(whole_traceback=options.verbose)


def start(script: Script, options: Options, own: own_ddp.LaunchForm) -> int:
    """Fork the ranks from this process, wait for them, and return the job's exit code."""
    assert options.nproc is not None
    if "OMP_NUM_THREADS" not in os.environ:  # set before torch and numpy make thread pools
        cores = len(os.sched_getaffinity(0))
        give(HERE.given, "OMP_NUM_THREADS", str(max(1, cores // options.nproc)))
    with imports_for_all():
        import_torch(several=options.nnodes > 1)
        from autoddp.launch import agent
        from autoddp.process import compiler
        from autoddp.process.joining import find_devices
        from autoddp.process.launcher_signals import LauncherSignals
        from autoddp.process.worker import Job

        compiler.import_for_all(script)
    devices_found = find_devices()
    logs = Logs(options.log_dir)
    job = Job(script, options, devices_found, own, logs, random.getstate())
    signals = LauncherSignals(options.nproc, options.grace)
    if options.nnodes > 1:
        address = f"{options.master_addr}:{options.master_port}"
        say(options, f"waiting for {options.nnodes} nodes at {address}")
    failure, keep_logs = agent.start(job, signals), False
    # rank 0 of this node prints its exception itself
    silent = failure is not None and (failure.rank or failure.killed or failure.where)
    if failure is not None and silent and signals.ending is None:
        print(f"{job.flag.end()}{words(failure, logs)}", file=sys.stderr, flush=True)
        keep_logs = not failure.where and logs.has_output(failure.rank)
    if not keep_logs:
        logs.remove()
    if failure is None:
        return 0
    if signals.ending is not None:
        first = signals.code_of(0)
        return first if first is not None else 128 + signals.ending
    return failure.code if failure.code >= 0 else 128 - failure.code
