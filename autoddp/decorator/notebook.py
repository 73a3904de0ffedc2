"""The kernel of a notebook, if this process is one: its threads, and the output of forks."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from autoddp.process import streams
from autoddp.report.places import shell

# Packages whose threads wait for messages. A fork does not use their locks, as its output goes to
# its log, and its messages are dropped.
_KERNELS = ("ipykernel", "IPython", "zmq", "tornado", "jupyter_client")
_SEND_TIME = 0.5  # seconds for the threads of the socket to send the output


def interactive() -> bool:
    """Return whether this is a session, without a script that `autoddp run` could run."""
    return kernel() is not None or getattr(sys.modules["__main__"], "__file__", None) is None


def kernel() -> Any:
    """Return the notebook kernel of this process, or None."""
    return getattr(shell(), "kernel", None)


def owns(thread: threading.Thread) -> bool:
    """Return whether a thread belongs to the kernel."""
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return interactive() and any(module.startswith(_KERNELS) for module in modules)


def to_log(path: Path) -> None:
    """Send the output of a fork to its log, and nothing to the notebook.

    This includes output of objects that hold the notebook's streams, such as handlers of `logging`.
    """
    streams.redirect(path)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):  # a notebook's, or one that captures output
            log = os.fdopen(number, "w", buffering=1, closefd=False)
            setattr(sys, name, log)
            if hasattr(stream, "pub_thread"):
                stream.write, stream.flush = log.write, log.flush
    own = kernel()
    if own is not None:
        own.session.pid = os.getpid()  # otherwise each message logs a warning
        own.iopub_thread.schedule = lambda _: None


def say_last(line: str) -> None:
    """Print a line to stderr, which may be a notebook's, right before this process ends."""
    with contextlib.suppress(OSError, ValueError):
        if kernel() is None:
            os.write(2, line.encode())
            return
        sys.stderr.write(line)
        sys.stderr.flush()  # to the kernel's socket
        time.sleep(_SEND_TIME)
