"""Check whether this process can be forked for the ranks of a call, and suggest a fix if not."""

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
from autoddp.options.parsing import to_arguments
from autoddp.options.row import DECORATOR

HARD = 2  # omp_pause_hard


def check(site: str, ranks: int, options: Options) -> None:
    """Check that the ranks above 0 can be forks of this process.

    Raises:
        BadInput: A fork could hang or crash.
    """
    reason = obstacle()
    if not reason:
        return
    fix = f"run `{command(ranks, options)}`, which needs no fork here, or make "
    if notebook.interactive():
        fix = f"{'restart the kernel' if notebook.kernel() else 'start again'} and make "
    raise BadInput(
        f"{site} needs {ranks} ranks, but this process cannot be forked ({reason}); "
        f"{fix}the call before that happens"
    )


def obstacle() -> str:
    """Return why a fork of this process could hang or crash, or an empty text if it is safe.

    Threads of native pools are no obstacle: OpenBLAS handles forks itself, and OpenMP runtimes can
    end their threads. Without `omp_pause_resource_all`, a child hangs in its first use of libgomp's
    pool if the parent has used the pool with several threads.
    """
    others = [thread.name for thread in threading.enumerate() if not _harmless(thread)]
    if others:
        return f"other threads run ({', '.join(others)})"
    device = _device_in_use()
    if device:
        return f"{device} is in use"
    if multiprocessing.active_children():
        return "it has child processes"
    return _openmp_threads()


def _harmless(thread: threading.Thread) -> bool:
    """Return whether a thread allows a fork: this one, a kernel's, or tqdm's monitor.

    The monitor is ended here, which is safe; the next bar starts another one.
    """
    if type(thread).__module__ == "tqdm._monitor":
        monitor: Any = thread
        monitor.exit()
        return True
    return thread is threading.current_thread() or notebook.owns(thread)


def _device_in_use() -> str:
    """Return the kind of accelerator that a fork of this process could not use, empty if none.

    A query of devices may have initialized it already.
    """
    kind = accelerator.kind()
    if not kind:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os._exit(int(accelerator.unforkable()))
        unusable = os.waitpid(pid, 0)[1]
        # after a step of Adam, torch's build for CUDA reports this without any GPU, too
        has_devices = unusable and torch.accelerator.device_count()
        device = torch_internals.accelerator() if has_devices else None
        kind = device.type if device is not None else ""
    return "CUDA" if kind == "cuda" else kind


def _openmp_threads() -> str:
    """End the idle threads of OpenMP runtimes; return why some are left, empty if none is.

    A runtime starts threads again when it needs them. One older than OpenMP 5.0 cannot end them.
    """
    maps = Path("/proc/self/maps").read_text().splitlines()
    for path in {line.rpartition(" ")[2] for line in maps}:
        if os.path.basename(path).startswith(("libgomp", "libomp", "libiomp")):
            pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
            if pause is None or pause(HARD) != 0:
                return "an OpenMP runtime, such as that of torch 2.6, keeps its threads"
    return ""


def command(ranks: int, options: Options) -> str:
    """Return the `autoddp run` command that runs this script on ranks."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        script = ["-m", spec.name.removesuffix(".__main__")]
    else:
        script = sys.argv[:1] if os.path.isfile(sys.argv[0]) else [getattr(main, "__file__", "-")]
    arguments = to_arguments(replace(options, nproc=ranks), DECORATOR)
    return shlex.join(["autoddp", "run", *arguments, *script, *sys.argv[1:]])
