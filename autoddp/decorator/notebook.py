"""The kernel of a notebook, if this process is one: its threads, and the output of its forks."""

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

# Their threads wait for messages. A fork never takes the locks that they may hold: its output goes
# to its log, and its messages are dropped.
_KERNELS = ("ipykernel", "IPython", "zmq", "tornado", "jupyter_client")
_HANDED_ON = 0.5  # seconds in which the threads of the socket pass on the output


def interactive() -> bool:
    """Return whether there is no script that `autoddp run` could run."""
    return kernel() is not None or getattr(sys.modules["__main__"], "__file__", None) is None


def kernel() -> Any:
    """Return the kernel that this process is, or None."""
    return getattr(shell(), "kernel", None)


def owns(thread: threading.Thread) -> bool:
    """Return whether a thread is the kernel's own."""
    target = getattr(thread, "_target", None)
    places = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return interactive() and any(place.startswith(_KERNELS) for place in places)


def to_log(path: Path) -> None:
    """Send the output of a fork to its log, and nothing to the notebook.

    An object that holds the notebook's own streams, such as a handler of `logging`, prints there,
    too.
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
        own.session.pid = os.getpid()  # otherwise each message is a warning in the log
        own.iopub_thread.schedule = lambda _: None


def say_last(line: str) -> None:
    """Print a line to stderr, which may be a notebook's, before this process ends at once."""
    with contextlib.suppress(OSError, ValueError):
        if kernel() is None:
            os.write(2, line.encode())
            return
        sys.stderr.write(line)
        sys.stderr.flush()  # to the kernel's socket
        time.sleep(_HANDED_ON)
