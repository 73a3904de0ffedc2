"""A clock of a rank's time in module calls: shared out, done by every rank, or tried; and after."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoddp.comm.group import Group

ELSEWHERE, SPLIT, WHOLE, TRIAL = "elsewhere", "split", "whole", "trial"
BACKWARD = "backward"  # where a reducer is armed: what was split, and what was not


class Work:
    """The seconds of each kind; a part of one kind inside another counts for itself alone."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._kind, self._since = ELSEWHERE, perf_counter()
        self.seconds = dict.fromkeys((ELSEWHERE, SPLIT, WHOLE, TRIAL, BACKWARD), 0.0)

    def turn(self, kind: str) -> str:
        """Count time as this kind from here on; return the kind before, to be turned back to."""
        now, before = self._now(), self._kind
        self.seconds[before] += now - self._since
        self._kind, self._since = kind, now
        return before

    def share(self) -> float | None:
        """Return the share of one process's work in modules that was split, None without any."""
        split, whole = self.seconds[SPLIT] * self._group.size, self.seconds[WHOLE]
        return split / (split + whole) if split + whole else None

    def _now(self) -> float:
        """Return the time of a clock that stands while this rank waits for others."""
        return perf_counter() - self._group.position.waited
