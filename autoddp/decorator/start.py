"""The start of the ranks above 0 at a call: forks of this process, where a fork is safe."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shlex
import socket
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from autoddp import torch_internals
from autoddp.comm import accelerator
from autoddp.decorator import notebook
from autoddp.decorator.parked_threads import is_known, park
from autoddp.decorator.workers import ParentLink, WorkerHandle, Workers
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.options.given import as_typed
from autoddp.options.row import DECORATOR
from autoddp.process import streams
from autoddp.process.launcher_signals import live_with
from autoddp.process.script import Script

SETTLE = 2.0  # seconds in which the threads of native libraries fall asleep after their work
HARD = 2  # omp_pause_hard
OLD = "an OpenMP runtime as old as that of torch 2.6 may keep its threads"


def check_forkable(site: str, ranks: int, options: Options) -> None:
    """Check that the ranks above 0 can be forks of this process.

    Raises:
        BadInput: They cannot.
    """
    against = unforkable()
    if against:
        raise BadInput(
            f"{site} needs {ranks} ranks, but this process cannot be forked ({against}); "
            f"{way_out(against, ranks, options)}"
        )


def unforkable() -> str:
    """Return why a fork of this process could hang or crash; empty if nothing speaks against it.

    Threads of native pools do not: OpenBLAS sees to forks by itself, and OpenMP runtimes are asked
    to give theirs back. A child of a parent that had used libgomp's pool with two threads hung in
    its own first use with two; after `omp_pause_resource_all` it never did.
    """
    others = [thread.name for thread in threading.enumerate() if not _harmless(thread)]
    if others:
        return f"other threads run ({', '.join(others)})"
    touched = _touched()
    if touched:
        return f"{touched} is in use"
    if multiprocessing.active_children():
        return "it has child processes"
    return _kept_pools() or ("" if _asleep() else "native threads are at work")


def _touched() -> str:
    """Return the kind of accelerator that a fork of this process could not use, empty if none.

    A mere question for devices may have begun to use one.
    """
    kind = accelerator.kind()
    if not kind:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os._exit(int(accelerator.unforkable()))
        poisoned = os.waitpid(pid, 0)[1]
        # after a step of Adam, torch's build for CUDA says so of a machine without GPUs, too
        there = poisoned and torch.accelerator.device_count()
        found = torch_internals.accelerator() if there else None
        kind = found.type if found is not None else ""
    return "CUDA" if kind == "cuda" else kind


def way_out(against: str, ranks: int, options: Options) -> str:
    """Return what to do where this process cannot be forked, by what stands in the way."""
    way, again = "", ""
    if not notebook.interactive():
        way = f"run `{_command(ranks, options)}`, which takes the script as it is, or "
    elif "wandb" not in against and "child processes" not in against:
        again = f"{'restart the kernel' if notebook.kernel() is not None else 'start again'} and "
    if "wandb" in against:
        return f"{way}call wandb.teardown() first, and wandb.init() inside the call"
    if against.startswith("other threads"):
        return f"{way}end them first, or {again}call it before they run"
    if against == OLD:
        return f"{way}take torch 2.7 or a newer one"
    if "child processes" in against:
        return f"{way}end them first: worker processes that persist end with their loader, by del"
    return f"{way}{again}let the call be the first that makes use of it"


def _command(ranks: int, options: Options) -> str:
    """Return the command that runs this script as a job from its first line on."""
    found = script()
    named = sys.argv[:1] if found is None else ["-m"] * found.module + [found.name]
    given = as_typed(replace(options, nproc=ranks), DECORATOR)
    return shlex.join(["autoddp", "run", *given, *named, *sys.argv[1:]])


def script() -> Script | None:
    """Return the file or module that `python` was called with; None where it was a text."""
    main, args = sys.modules["__main__"], tuple(sys.argv[1:])
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return Script(spec.name.removesuffix(".__main__"), args, module=True)
    file = getattr(main, "__file__", None)
    typed = sys.argv[0]  # which is the same on each node
    if file is not None and all(map(os.path.isfile, (file, typed))):
        file = typed if os.path.samefile(file, typed) else file
    return None if file is None else Script(str(file), args)


def fork(workers: Workers, size: int) -> ParentLink | None:
    """Fork the ranks above 0; return None in the parent, and in each child its link to rank 0."""
    streams.flush()
    parent, parked = os.getpid(), park()
    try:
        return _fork(workers, size, parent)
    finally:
        for thread in parked:
            (thread.again if os.getpid() == parent else thread.in_fork)()


def _fork(workers: Workers, size: int, parent: int) -> ParentLink | None:
    for rank in range(1, size):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with warnings.catch_warnings():
            # newer Pythons warn of any thread; `unforkable` has looked at each
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            live_with(parent)
            ours.close()
            for member in workers.members:
                member.channel.close()
            return ParentLink(rank, theirs)
        theirs.close()
        workers.members.append(WorkerHandle(rank, pid, ours))
    return None


def _harmless(thread: threading.Thread) -> bool:
    """Return whether a thread allows a fork: this one, a kernel's own, a known library's."""
    return thread is threading.current_thread() or notebook.owns(thread) or is_known(thread)


def _kept_pools() -> str:
    """End the idle threads of OpenMP runtimes; return why some are left, empty if none is.

    They come back when they are needed. A runtime of before OpenMP 5.0 ends none, and cannot say
    whether it has any.
    """
    loaded = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if os.path.basename(path).startswith(("libgomp", "libomp", "libiomp")):
            loaded.add(path)
    for path in loaded:
        pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
        if pause is None:
            return OLD
        if pause(HARD) != 0:
            return "an OpenMP runtime keeps its threads"
    return ""


def _asleep() -> bool:
    """Wait until all threads but Python's are idle, and return whether they were in time."""
    known = {thread.native_id for thread in threading.enumerate()} | {threading.get_native_id()}
    deadline = time.monotonic() + SETTLE
    while any(
        _runs(task) for task in Path("/proc/self/task").iterdir() if int(task.name) not in known
    ):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _runs(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False  # the thread has ended
