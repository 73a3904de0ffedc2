"""From what the ranks say of themselves: do they wait for what will not come?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from autoddp.comm.position import ACTING, BACKWARD, COLLECTIVE, EFFECT, MEETING

WAITS = (COLLECTIVE, EFFECT, MEETING)  # a backward also computes


@dataclass(frozen=True)
class RankStatus:
    """Where one rank stands; `for_` and `idle` in seconds.

    Attributes:
        kind: What it is in the midst of, see `Position`; empty: its own code.
        words: The same in words.
        for_: How long it has been in that.
        idle: How long it has not been seen to get anywhere.
        line: The user's line.
        pid: Its process.
        heard: How long ago it said so.
    """

    rank: int
    kind: str
    words: str
    for_: float
    idle: float
    line: str
    pid: int = 0
    heard: float = 0.0

    @property
    def waits(self) -> float:
        """How long it has waited for other ranks."""
        if self.kind == BACKWARD:
            return min(self.for_, self.idle)
        return self.for_ if self.kind in WAITS else 0.0

    @property
    def still(self) -> float:
        """How long it has got nowhere."""
        return max(self.heard, self.waits if self.kind in WAITS else self.idle)


class Diagnosis(Enum):
    """What is to be done."""

    FINE = "nothing"
    SLOW = "say who is waited for"
    STUCK = "say where each rank stands, and end"


def judge(ranks: Sequence[RankStatus], timeout: float) -> tuple[Diagnosis, list[RankStatus]]:
    """The case, and the ranks that are waited for: none where all wait, each for another."""
    waiting = [r for r in ranks if r.waits >= timeout]
    if not waiting:
        return Diagnosis.FINE, []
    gone = [r for r in ranks if r.heard >= timeout]
    if gone:
        return Diagnosis.STUCK, gone
    acting = [r for r in ranks if r.kind == ACTING]
    awaited = {r.words for r in acting}  # of a batch, the first rank of each node has its own
    if acting and all(r.kind == EFFECT and r.words in awaited for r in waiting):
        return Diagnosis.SLOW, acting  # all have agreed to wait for just this, however long it takes
    missing = [r for r in ranks if r.kind not in (*WAITS, BACKWARD)]
    if all(r.still >= timeout for r in ranks):
        return Diagnosis.STUCK, missing
    return Diagnosis.SLOW, missing or [r for r in ranks if r.still < timeout]
