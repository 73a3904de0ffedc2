"""The output of ranks: rank 0 of the job has the terminal, the others write to log files."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

from autoddp.errors import BadInput
from autoddp.report import PREFIX

TAIL = 50  # lines of a log that are shown after a failure


class Logs:
    """The logs of this node's ranks: in the user's folder, or in a private one that goes away."""

    def __init__(self, given: str | None) -> None:
        self.given = given
        self.folder = given

    def make(self) -> None:
        """Make the folder only when the ranks start: a job that never starts any leaves nothing."""
        if self.folder is None:
            self.folder = tempfile.mkdtemp(prefix="autoddp-")

    def of(self, rank: int) -> Path:
        """Return the path of the log of a rank above 0."""
        return Path(self.folder or "", f"rank{rank}.log")

    def has_output(self, rank: int) -> bool:
        """Return whether the log of a rank holds anything."""
        return self.of(rank).is_file() and self.of(rank).stat().st_size > 0

    def remove(self) -> None:
        """Remove the logs, unless they are in the folder that the user gave."""
        if self.given is None and self.folder is not None:
            shutil.rmtree(self.folder)

    def refusal(self, rank: int) -> str:
        """Return the only line of a log if it is one of autoddp's; empty otherwise."""
        text = tail(self.of(rank))
        return text if text.startswith(PREFIX) and "\n" not in text else ""

    def failure(self, rank: int, what: str) -> str:
        """Return the line that names the rank that failed, with the end of its log."""
        line = f"{PREFIX} rank {rank} {what}"
        text = tail(self.of(rank))
        return f"{line}; the end of its log {self.of(rank)}:\n{text}" if text else line


def redirect(path: Path) -> None:
    """Send stdout and stderr of this process and its children to a file, and leave stdin empty.

    Raises:
        BadInput: The file cannot be written.
    """
    flush()
    # no link is followed, as it may lead anywhere
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_NOFOLLOW
    try:
        log = os.open(path, flags, 0o600)
    except OSError as error:
        raise BadInput(
            f"--log-dir is {path.parent}, but {path.name} in it cannot be written "
            f"({error.strerror}); remove it"
        ) from None
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # so the log keeps the order of lines, and those of a rank that is killed
        sys.stdout.reconfigure(line_buffering=True)


def flush() -> None:
    """Flush stdout and stderr, before a fork would write their buffers twice."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def tail(path: Path) -> str:
    """Return the last lines of a log; empty for no log."""
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return "\n".join(lines[-TAIL:])
