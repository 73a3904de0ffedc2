"""The kernel of a notebook, where this process is one: its threads, and its forks' silence."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Any, TextIO

from autoddp.report.places import shell

# Their threads wait for messages. What they could hold at a fork, a fork never takes: its output
# goes to its log, and its messages nowhere.
_KERNELS = ("ipykernel", "IPython", "zmq", "tornado", "jupyter_client")
_HANDED_ON = 0.5  # seconds in which the socket's own threads hand on what was written


def interactive() -> bool:
    """Return whether there is no script that a fresh process could run."""
    return kernel() is not None or getattr(sys.modules["__main__"], "__file__", None) is None


def kernel() -> Any:
    """Return the kernel that this process is, or None."""
    return getattr(shell(), "kernel", None)


def owns(thread: threading.Thread) -> bool:
    """Return whether a thread is the kernel's own."""
    target = getattr(thread, "_target", None)
    places = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return interactive() and any(place.startswith(_KERNELS) for place in places)


def way_out(against: str) -> str:
    """Return what to do where this process cannot be forked, and is all that there is."""
    if "wandb" in against:
        return "call wandb.teardown() first, and wandb.init() inside the call"
    again = "restart the kernel" if kernel() is not None else "start again"
    if against.startswith("other threads"):
        return f"end them first, or {again} and call it before they run"
    if "child processes" in against:
        return "end them first: worker processes that persist end with their loader, by del"
    return f"{again}, and let the call be the first that makes use of it"


def silence(number: int, stream: Any) -> TextIO:
    """Return the stream in the place of a notebook's, in a fork: what is printed goes to `number`.

    What holds the notebook's own, as a handler of `logging` may, prints there, too.
    """
    log = os.fdopen(number, "w", buffering=1, closefd=False)
    if hasattr(stream, "pub_thread"):
        stream.write, stream.flush = log.write, log.flush
    return log


def disconnect() -> None:
    """Send nothing to the notebook from this fork: figures, bars and widgets are rank 0's."""
    own = kernel()
    if own is not None:
        own.session.pid = os.getpid()  # else each message is a warning in the log
        own.iopub_thread.schedule = _drop


def say_last(line: str) -> None:
    """Print a line to stderr, which may be a notebook's, before this process ends at once."""
    with contextlib.suppress(OSError, ValueError):
        if kernel() is None:
            os.write(2, line.encode())
            return
        sys.stderr.write(line)
        sys.stderr.flush()  # to the kernel's socket
        time.sleep(_HANDED_ON)


def _drop(_: Any) -> None:
    """Send nothing to the notebook."""
