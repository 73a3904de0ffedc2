"""Who has the terminal: rank 0 of the job; what the others write goes to log files."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

TAIL = 20  # lines of a log that are shown after a failure


def log_of(folder: str, rank: int) -> Path:
    """Where a rank above 0 writes."""
    return Path(folder, f"rank{rank}.log")


def redirect(path: Path) -> None:
    """From here on stdout and stderr of this process, and of its children, go to a file."""
    flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # the log keeps the order, and a killed rank's


def flush() -> None:
    """Write out what is buffered, before a fork would write it twice."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def tail(path: Path) -> str:
    """The last lines of a log, with their length made known; empty where nothing was written."""
    if not path.exists():
        return ""
    lines = path.read_text(errors="replace").splitlines()
    cut = [f"... ({len(lines) - TAIL} lines more)"] if len(lines) > TAIL else []
    return "\n".join(cut + lines[-TAIL:])


def failure(rank: int, what: str, log: Path) -> str:
    """The line that names the rank that failed, and the end of its log."""
    line = f"[autoddp] rank {rank} {what}"
    text = tail(log)
    return f"{line}; the end of its log {log}:\n{text}" if text else line
