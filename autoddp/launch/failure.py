"""The lines that a launcher prints, and the first failure of a rank or node."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass

from autoddp.options import Options
from autoddp.process.streams import Logs
from autoddp.report import PREFIX

BAD_INPUT = 2  # the exit code of a rank that autoddp refuses to start, with one line


@dataclass(frozen=True)
class Failure:
    """The first failure of a job.

    Attributes:
        code: The exit code, or minus the number of the signal that ended the rank.
        where: The name of the node, if it is another one.
        lost: The reason, if the whole node is lost.
    """

    rank: int
    local_rank: int
    code: int
    where: str = ""
    lost: str = ""

    @property
    def killed(self) -> bool:
        """Return whether a signal ended the rank."""
        return self.code < 0

    @property
    def who(self) -> str:
        """Return the rank in words, and its node if it is another one."""
        return f"rank {self.rank} on {self.where}" if self.where else f"rank {self.rank}"

    @property
    def what(self) -> str:
        """Return in words how the rank ended."""
        if not self.killed:
            return f"ended with exit code {self.code}"
        names = {number.value: number.name for number in signal.Signals}
        return f"was killed by {names.get(-self.code, 'a signal')} (signal {-self.code})"


def words(failure: Failure, logs: Logs) -> str:
    """Describe the failure, with the end of the log, or the node that has it.

    If autoddp refused the input, that line is returned alone.
    """
    if failure.lost:
        return f"{PREFIX} {failure.where} is lost: {failure.lost}"
    if failure.where:
        return f"{PREFIX} {failure.who} {failure.what}; its log is on that node"
    refused = logs.refusal(failure.rank) if failure.code == BAD_INPUT else ""
    return refused or logs.failure(failure.rank, failure.what)


def say(options: Options, text: str) -> None:
    """Print a line of the launcher, unless --quiet."""
    if not options.quiet:
        print(f"{PREFIX} {text}", file=sys.stderr, flush=True)
