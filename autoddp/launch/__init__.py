"""Start this node's ranks and see them to their end: one exit code, one failure told."""

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
from autoddp.launch.failure import Failure, words
from autoddp.options import Options
from autoddp.process import devices, network, own_ddp
from autoddp.process.job_folder import JobFolder
from autoddp.process.script import Script
from autoddp.process.source import SourceFacts
from autoddp.process.streams import Logs
from autoddp.report import PREFIX

if TYPE_CHECKING:
    from autoddp.patching import Feature

PORT = 29500  # torchrun's


def run(script: Script, options: Options) -> int:
    """Run the script as the options say; return the exit code of the command.

    Raises:
        BadInput: The options cannot be met; nothing was started.
    """
    options = schedulers.settle(os.environ, options)
    script.find()
    check_places(options)
    check_disabled(options)
    own = own_ddp.of(SourceFacts() if options.own_ddp == "no" else script.read(), options.own_ddp)
    if launched(os.environ):
        world = World.read(os.environ)
        import_torch(several=world.local_world_size < world.world_size)
        from autoddp.process import worker

        worker.leave(worker.joined(script, options, own))
    if own.kind is own_ddp.Kind.ONCE:
        return own_ranks(script, options, own)
    ready = prepare(options)
    if (
        ready.nproc == 1
        and ready.nnodes == 1
        and own.kind is own_ddp.Kind.VIEW
        and not ready.max_restarts
    ):
        return alone(script, ready, "1 rank: the script runs as it is")
    return start(script, ready, own)


def launched(environ: Mapping[str, str]) -> bool:
    """Return whether another launcher has started this process as one of its ranks.

    Raises:
        BadInput: Some of its variables are there, but not all.
    """
    if not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & set(environ):
        return False
    World.read(environ)
    return True


def prepare(options: Options) -> Options:
    """Fill in what the options left open, and check them against this machine.

    Raises:
        BadInput: The options cannot be met here.
    """
    found = devices.there(os.environ)
    ready = replace(
        options, nproc=options.nproc or max(1, len(found.names) // options.gpus_per_rank)
    )
    assert ready.nproc is not None
    devices.share(found, ready.nproc, ready.backend, ready.gpus_per_rank)
    if ready.nnodes == 1:
        if ready.node_rank or ready.master_port is None:
            return ready
    elif ready.master_addr is None:
        raise BadInput(
            f"--nnodes is {ready.nodes} without --master-addr; give the address of node 0, "
            "the same on every node"
        )
    else:
        network.resolve(ready.master_addr)
        ready = replace(ready, master_port=ready.master_port or PORT)
    assert ready.master_port is not None
    if ready.changes:
        assert ready.master_addr is not None
        hosts = network.is_here(ready.master_addr) and network.is_free(ready.master_port)
    else:
        hosts = ready.node_rank == 0
    if hosts:
        network.check_free(ready.master_port)
    elif ready.master_addr is not None:
        network.check_node_0(ready.master_addr, ready.master_port)
    return ready


def features() -> Sequence[type[Feature]]:
    """Return the classes of all features; they import torch."""
    from autoddp.process.features import FEATURES

    return FEATURES


def check_disabled(options: Options) -> None:
    """Check the names of what is to be left out.

    Raises:
        BadInput: A name is no feature's.
    """
    known = [feature.name for feature in features()] if options.disable else []
    for name in options.disable:
        feature, _, module = name.partition(":")
        if name not in known and not (feature == "modules" and module):
            raise BadInput(f"--disable is {name!r}; it takes {', '.join(known) or 'nothing yet'}")


def check_places(options: Options) -> None:
    """Make the folder for logs, and look for the folder of the report.

    Raises:
        BadInput: The first cannot be made, or the second is not there.
    """
    folder = os.path.dirname(options.report or "")
    if folder and not os.path.isdir(folder):
        raise BadInput(
            f"--report is {options.report}, but there is no folder {folder}; make it first"
        )
    if options.log_dir is None:
        return
    try:
        os.makedirs(options.log_dir, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"--log-dir is {options.log_dir}, which cannot be made ({error.strerror}); "
            "give a folder that may be written to"
        ) from None


def alone(script: Script, options: Options, why: str) -> int:
    """Run the script in this process, as it is; return its exit code."""
    say(options, why)
    HERE.world = World()  # `@distributed` shall start no job in it
    return script.run(whole_traceback=options.verbose)


def own_ranks(script: Script, options: Options, own: own_ddp.LaunchForm) -> int:
    """Run, like `alone`, a script that starts its ranks itself; return its exit code."""
    code = alone(script, options, own_ddp.once(script.name, own.line))
    if code and not options.quiet and "torch" in sys.modules:
        from autoddp.process.guard import tell_lacking

        tell_lacking(own, script.name, World(), None)
    return code


def start(script: Script, options: Options, own: own_ddp.LaunchForm) -> int:
    """Fork the ranks from this process, wait for them, and return the job's exit code."""
    assert options.nproc is not None
    if "OMP_NUM_THREADS" not in os.environ:  # before torch and numpy make their pools
        give(HERE.given, "OMP_NUM_THREADS", threads(options.nproc))
    import_torch(several=options.nnodes > 1)
    from autoddp.launch import agent
    from autoddp.process.launcher_signals import LauncherSignals
    from autoddp.process.worker import Job, find_devices

    given = find_devices(options.nproc, options)
    logs = Logs(options.log_dir)
    job = Job(script, options, given, own, logs, JobFolder(), random.getstate())
    signals = LauncherSignals(options.nproc, options.grace)
    if options.nnodes > 1:
        say(
            options,
            f"waiting for {options.nodes} nodes at {options.master_addr}:{options.master_port}",
        )
    failure = agent.start(job, signals)
    if failure is None:
        logs.remove()
        return 0
    if not tell(failure, logs, signals.ending):
        logs.remove()
    return outcome(failure, signals.code_of(0), signals.ending)


def threads(ranks: int) -> str:
    """Return how many threads each of a node's ranks has, unless the user says so."""
    return str(max(1, len(os.sched_getaffinity(0)) // ranks))


def import_torch(several: bool) -> None:
    """Import torch once for all ranks; on several nodes mute its sockets' complaints of DNS."""
    level = "TORCH_CPP_LOG_LEVEL"  # read once, at this import; then no longer for others to see
    quiet = several and level not in os.environ
    if quiet:
        os.environ[level] = "ERROR"
    import torch  # noqa: F401

    if quiet:
        del os.environ[level]


def outcome(failure: Failure, first: int | None, ending: int | None) -> int:
    """Return the exit code of a job of which a rank failed."""
    if ending is not None:
        return first if first is not None else 128 + ending
    return failure.code if failure.code >= 0 else 128 - failure.code


def tell(failure: Failure, logs: Logs, ending: int | None) -> bool:
    """Say who failed, unless rank 0 said it itself; return whether its log is still needed."""
    if ending is not None or (failure.rank == 0 and not failure.killed):
        return False
    print(words(failure, logs), file=sys.stderr, flush=True)
    return not failure.where and logs.said(failure.rank)


def say(options: Options, text: str) -> None:
    """Print a line of the launcher's own, unless --quiet."""
    if not options.quiet:
        print(f"{PREFIX} {text}", file=sys.stderr, flush=True)
