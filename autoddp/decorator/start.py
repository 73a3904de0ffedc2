"""The two ways in which `@distributed` starts the other ranks: forks, or fresh processes."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddp.comm.place import HERE
from autoddp.decorator import notebook
from autoddp.decorator.parked_threads import is_known, park
from autoddp.decorator.workers import ParentLink, WorkerHandle, Workers
from autoddp.process import streams
from autoddp.process.boot import BOOT
from autoddp.process.devices import Devices, variable
from autoddp.process.launcher_signals import live_with
from autoddp.process.streams import Logs

SETTLE = 2.0  # seconds in which the threads of native libraries fall asleep after their work
FRESH = "autoddp.decorator.fresh"
HARD = 2  # omp_pause_hard


@dataclass(frozen=True)
class Origin:
    """The start of this process, as far as it can be known when autoddp is imported.

    Attributes:
        argv: Arguments of the script, its own name first.
        cwd: Current folder.
        random: State of Python's generator.
        numpy: State of numpy's global generator; None where numpy.random is not imported.
    """

    argv: tuple[str, ...]
    cwd: str
    random: Any
    numpy: Any

    @classmethod
    def now(cls) -> Origin:
        """Read the present state of this process, before the script has done much."""
        numpy = sys.modules.get("numpy.random")
        drawn = numpy.get_state() if numpy is not None else None
        if drawn is not None:
            drawn = [drawn[0], drawn[1].tolist(), *drawn[2:]]
        return cls(tuple(sys.argv), os.getcwd(), random.getstate(), drawn)


def unforkable() -> str:
    """Return why a fork of this process could hang or crash; empty if nothing speaks against it.

    Threads of native pools do not: OpenBLAS sees to forks by itself, and OpenMP runtimes are asked
    to give theirs back. A child of a parent that had used libgomp's pool with two threads hung in
    its own first use with two; after `omp_pause_resource_all` it never did.
    """
    others = [thread.name for thread in threading.enumerate() if not _harmless(thread)]
    if others:
        return f"other threads run ({', '.join(others)})"
    touched = _touched() if "torch" in sys.modules else ""
    if touched:
        return f"{touched} is in use"
    if multiprocessing.active_children():
        return "it has child processes"
    if not _give_back_pools():
        return "an OpenMP runtime keeps its threads"
    return "" if _asleep() else "native threads are at work"


def _touched() -> str:
    """Return the kind of accelerator that a fork of this process could not use, empty if none.

    A mere question for devices may have begun to use one.
    """
    from autoddp import torch_internals
    from autoddp.comm import accelerator

    kind = accelerator.kind()
    if not kind:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os._exit(int(accelerator.unforkable()))
        found = torch_internals.accelerator()
        kind = found.type if os.waitpid(pid, 0)[1] and found is not None else ""
    return "CUDA" if kind == "cuda" else kind


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
            _to_log(workers.logs, rank)
            return ParentLink(rank, size, theirs)
        theirs.close()
        workers.members.append(WorkerHandle(rank, pid, ours))
    return None


def spawn(workers: Workers, size: int, origin: Origin, devices: Devices) -> None:
    """Start the ranks above 0 as fresh processes that run the script from its first line.

    Each is shown its own device from its start, since a driver reads only once which devices there
    are, at the first question.
    """
    name, module = _script(origin)
    for rank in range(1, size):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        facts = {
            "rank": rank,
            "size": size,
            "parent": os.getpid(),
            "channel": theirs.fileno(),
            "cwd": origin.cwd,
            "script": [name, list(origin.argv[1:]), module],
            "random": origin.random,
            "numpy": origin.numpy,
        }
        shown = (
            {variable(devices.kind, os.environ): devices.visible[rank]} if devices.visible else {}
        )
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with open(workers.logs.of(rank), "wb") as log:
            process = subprocess.Popen(
                [sys.executable, *flags, BOOT, FRESH, json.dumps(facts)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=os.environ | shown,
            )
        theirs.close()
        workers.members.append(WorkerHandle(rank, process.pid, ours, process))


def _script(origin: Origin) -> tuple[str, bool]:
    """Return the file or module that `python` was called with, and whether it is a module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return spec.name.removesuffix(".__main__"), True
    path = os.path.join(origin.cwd, origin.argv[0])
    return (origin.argv[0] if os.path.isfile(path) else str(main.__file__)), False


def _to_log(logs: Logs, rank: int) -> None:
    streams.redirect(logs.of(rank))
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):  # a notebook's, or one that captures output
            setattr(sys, name, notebook.silence(number, stream))
    notebook.disconnect()


def _harmless(thread: threading.Thread) -> bool:
    """Return whether a thread allows a fork: this one, autoddp's own, a kernel's, a known one."""
    if thread is threading.current_thread() or (
        HERE.workers is not None and HERE.workers.owns(thread)
    ):
        return True
    return notebook.owns(thread) or is_known(thread)


def _give_back_pools() -> bool:
    """End the idle threads of OpenMP runtimes, and return whether all ended.

    They come back when they are needed.
    """
    loaded = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if os.path.basename(path).startswith(("libgomp", "libomp", "libiomp")):
            loaded.add(path)
    for path in loaded:
        pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
        if pause is None or pause(HARD) != 0:
            return False
    return True


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
