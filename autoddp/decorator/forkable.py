"""Checks whether the ranks of a call can be forks of this process, and the way out if not."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shlex
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from autoddp import torch_internals
from autoddp.comm import accelerator
from autoddp.decorator import notebook
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.options.given import as_typed
from autoddp.options.row import DECORATOR

HARD = 2  # omp_pause_hard


def check(site: str, ranks: int, options: Options) -> None:
    """Check that the ranks above 0 can be forks of this process.

    Raises:
        BadInput: A fork could hang or crash.
    """
    against = obstacle()
    if not against:
        return
    first = f"run `{command(ranks, options)}`, which takes the script as it is, or make "
    if notebook.interactive():
        first = f"{'restart the kernel' if notebook.kernel() else 'start again'} and make "
    raise BadInput(
        f"{site} needs {ranks} ranks, but this process cannot be forked ({against}); "
        f"{first}the call before that begins"
    )


def obstacle() -> str:
    """Return why a fork of this process could hang or crash, or an empty text if it is safe.

    Threads of native pools are no obstacle: OpenBLAS handles forks by itself, and OpenMP runtimes
    can end theirs. A child of a parent that had used libgomp's pool with two threads hung in its
    own first use with two; after `omp_pause_resource_all` it never did.
    """
    others = [thread.name for thread in threading.enumerate() if not _harmless(thread)]
    if others:
        return f"other threads run ({', '.join(others)})"
    touched = _touched()
    if touched:
        return f"{touched} is in use"
    if multiprocessing.active_children():
        return "it has child processes"
    return _kept_pools()


def _harmless(thread: threading.Thread) -> bool:
    """Return whether a thread allows a fork: this one, a kernel's own, the monitor of tqdm's bars.

    The monitor is ended here, which is known to be safe; the next bar starts another.
    """
    if type(thread).__module__ == "tqdm._monitor":
        monitor: Any = thread
        monitor.exit()
        return True
    return thread is threading.current_thread() or notebook.owns(thread)


def _touched() -> str:
    """Return the kind of accelerator that a fork of this process could not use, empty if none.

    Asking for devices may already have initialized one.
    """
    kind = accelerator.kind()
    if not kind:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os._exit(int(accelerator.unforkable()))
        poisoned = os.waitpid(pid, 0)[1]
        # after a step of Adam, torch's build for CUDA reports this on a machine without GPUs, too
        there = poisoned and torch.accelerator.device_count()
        found = torch_internals.accelerator() if there else None
        kind = found.type if found is not None else ""
    return "CUDA" if kind == "cuda" else kind


def _kept_pools() -> str:
    """End the idle threads of OpenMP runtimes; return why some are left, empty if none is.

    A runtime starts them again when it needs them. A runtime older than OpenMP 5.0 ends none.
    """
    maps = Path("/proc/self/maps").read_text().splitlines()
    for path in {line.rpartition(" ")[2] for line in maps}:
        if os.path.basename(path).startswith(("libgomp", "libomp", "libiomp")):
            pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
            if pause is None or pause(HARD) != 0:
                return "an OpenMP runtime, such as that of torch 2.6, keeps its threads"
    return ""


def command(ranks: int, options: Options) -> str:
    """Return the command that runs this script on ranks from its first line on."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        named = ["-m", spec.name.removesuffix(".__main__")]
    else:
        named = sys.argv[:1] if os.path.isfile(sys.argv[0]) else [getattr(main, "__file__", "-")]
    given = as_typed(replace(options, nproc=ranks), DECORATOR)
    return shlex.join(["autoddp", "run", *given, *named, *sys.argv[1:]])
