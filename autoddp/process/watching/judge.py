"""The decision, from what the ranks report, whether the job hangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoddp.comm.position import ACTING, BACKWARD, WAITING


@dataclass(frozen=True)
class RankStatus:
    """The report of one rank about itself; all times are in seconds.

    Attributes:
        rank: Number of the rank.
        kind: Kind of act or wait that it is in, see `Position`; empty: the script's own code.
        words: Description of that act or wait for the user.
        for_: Time since that act or wait began.
        idle: Time for which the rank has not been seen to get anywhere.
        line: Line of the script that runs.
        stack: Host and process of the rank, and the frames of the user's that it is in.
        heard: Time since the report.
    """

    rank: int
    kind: str
    words: str
    for_: float
    idle: float
    line: str
    stack: tuple[str, ...] = ("somewhere",)
    heard: float = 0.0

    @property
    def waits(self) -> float:
        """Return for how many seconds the rank has waited for other ranks."""
        if self.kind == BACKWARD:  # which also computes
            return min(self.for_, self.idle)
        return self.for_ if self.kind == WAITING else 0.0

    @property
    def still(self) -> float:
        """Return for how many seconds the rank has got nowhere."""
        return max(self.heard, self.waits if self.kind == WAITING else self.idle)

    @property
    def does(self) -> str:
        """Describe for messages what the rank does."""
        if self.waits:
            return f"has waited for {self.waits:.0f} s in «{self.words}»"
        return f"is at {self.line}" + (f", idle for {self.idle:.0f} s" if self.idle >= 1 else "")


def judge(ranks: Sequence[RankStatus], timeout: float) -> list[RankStatus] | None:
    """Return the ranks that are missing if the job hangs, else None.

    The list is empty where all wait, each for another. A job hangs if a rank waits for longer than
    `timeout` seconds, and another does not answer, or none gets anywhere.
    """
    waiting = [r for r in ranks if r.waits >= timeout]
    gone = [r for r in ranks if r.heard >= timeout]
    if not waiting or gone:
        return gone if waiting else None
    # the first rank of each node has its own words of a batch
    awaited = {r.words for r in ranks if r.kind == ACTING}
    if awaited and all(r.words in awaited for r in waiting):
        return None  # all have agreed to wait for this, however long it takes
    if any(r.still < timeout for r in ranks):
        return None
    return [r for r in ranks if r.kind not in (WAITING, BACKWARD)]
