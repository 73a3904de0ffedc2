"""The first rank, or the first node, that failed."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """Who failed, and how.

    Attributes:
        code: Its exit code; negative: minus the signal that ended it.
        where: The node, in words, if it is another one.
        lost: Why the whole node counts as lost.
    """

    rank: int
    local_rank: int
    code: int
    where: str = ""
    lost: str = ""

    @property
    def killed(self) -> bool:
        """By a signal."""
        return self.code < 0

    @property
    def who(self) -> str:
        """The rank, and where that is."""
        return f"rank {self.rank} on {self.where}" if self.where else f"rank {self.rank}"

    @property
    def what(self) -> str:
        """How it ended."""
        if not self.killed:
            return f"ended with exit code {self.code}"
        names = {number.value: number.name for number in signal.Signals}
        return f"was killed by {names.get(-self.code, 'a signal')} (signal {-self.code})"


def lost(where: str, why: str) -> Failure:
    """A node with all its ranks."""
    return Failure(-1, -1, 1, where, why)
