"""Who has the terminal: rank 0 of the job; what the others write goes to log files."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

from autoddp.errors import BadInput

TAIL = 20  # lines of a log that are shown after a failure
MOST = 200  # for a traceback that is longer


class Logs:
    """The logs of this node's ranks: in the user's folder, or in a private one that goes away."""

    def __init__(self, given: str | None) -> None:
        self.given = given
        self.folder = given

    def make(self) -> None:
        """Just before the ranks start, so that a job that never does leaves nothing."""
        if self.folder is None:
            self.folder = tempfile.mkdtemp(prefix="autoddp-")

    def of(self, rank: int) -> Path:
        """Where a rank above 0 writes."""
        return Path(self.folder or "", f"rank{rank}.log")

    def said(self, rank: int) -> bool:
        """Whether there is anything in it."""
        return self.of(rank).is_file() and self.of(rank).stat().st_size > 0

    def remove(self) -> None:
        """Unless they are where the user wants them."""
        if self.given is None and self.folder is not None:
            shutil.rmtree(self.folder)

    def failure(self, rank: int, what: str) -> str:
        """The line that names the rank that failed, and the end of its log."""
        line = f"[autoddp] rank {rank} {what}"
        text = tail(self.of(rank))
        return f"{line}; the end of its log {self.of(rank)}:\n{text}" if text else line


def redirect(path: Path) -> None:
    """From here on stdout and stderr of this process, and of its children, go to a file."""
    flush()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_NOFOLLOW  # a link may lead anywhere
    try:
        log = os.open(path, flags, 0o600)
    except OSError as error:
        raise BadInput(
            f"--log-dir is {path.parent}, but {path.name} in it cannot be written ({error.strerror}); "
            "remove it"
        ) from None
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
    if not path.is_file():
        return ""
    lines = path.read_text(errors="replace").splitlines()
    last = range(max(0, len(lines) - MOST), len(lines))
    traceback = next((at for at in last if lines[at].startswith("Traceback (most recent")), len(lines))
    start = max(0, min(traceback, len(lines) - TAIL))
    return "\n".join([f"... ({start} lines more)"] * bool(start) + lines[start:])
