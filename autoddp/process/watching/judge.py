"""The judgement, from what the ranks say of themselves, whether they wait in vain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from autoddp.comm.position import ACTING, BACKWARD, COLLECTIVE, EFFECT, MEETING

WAITS = (COLLECTIVE, EFFECT, MEETING)  # a backward also computes


@dataclass(frozen=True)
class RankStatus:
    """The place where one rank stands; all times are in seconds.

    Attributes:
        rank: Number of the rank.
        kind: Kind of act or wait that it is in, see `Position`; empty: the script's own code.
        words: Description of that act or wait for the user.
        for_: Time since that act or wait began.
        idle: Time for which the rank has not been seen to get anywhere.
        line: Line of the script that runs.
        stack: Where the rank is, and the frames of the user's that it is in.
        heard: Time since the rank said all this.
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
        if self.kind == BACKWARD:
            return min(self.for_, self.idle)
        return self.for_ if self.kind in WAITS else 0.0

    @property
    def still(self) -> float:
        """Return for how many seconds the rank has got nowhere."""
        return max(self.heard, self.waits if self.kind in WAITS else self.idle)

    @property
    def does(self) -> str:
        """Return in words what the rank does."""
        if self.waits:
            return f"has waited for {self.waits:.0f} s in «{self.words}»"
        return f"is at {self.line}" + (f", idle for {self.idle:.0f} s" if self.idle >= 1 else "")


class Diagnosis(Enum):
    """The state of a job, with the action that it calls for."""

    FINE = "nothing"
    SLOW = "say who is waited for"
    STUCK = "say where each rank stands, and end"


def judge(ranks: Sequence[RankStatus], timeout: float) -> tuple[Diagnosis, list[RankStatus]]:
    """Judge the state of the job by its ranks, with `timeout` in seconds.

    Returns:
        State, and the ranks that are waited for: none where all wait, each for another.
    """
    waiting = [r for r in ranks if r.waits >= timeout]
    if not waiting:
        return Diagnosis.FINE, []
    gone = [r for r in ranks if r.heard >= timeout]
    if gone:
        return Diagnosis.STUCK, gone
    acting = [r for r in ranks if r.kind == ACTING]
    awaited = {r.words for r in acting}  # the first rank of each node has its own words of a batch
    if acting and all(r.kind == EFFECT and r.words in awaited for r in waiting):
        return Diagnosis.SLOW, acting  # all have agreed to wait for this, however long it takes
    missing = [r for r in ranks if r.kind not in (*WAITS, BACKWARD)]
    if all(r.still >= timeout for r in ranks):
        return Diagnosis.STUCK, missing
    return Diagnosis.SLOW, missing or [r for r in ranks if r.still < timeout]
