"""A clock of a rank's time in module calls and backwards: on sharded tensors, and on whole ones."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoddp.comm.group import Group

ELSEWHERE, SHARDED, WHOLE, BACKWARD = "elsewhere", "sharded", "whole", "backward"


class Work:
    """The seconds of each kind; a part of one kind inside another counts for itself alone.

    In a module's call time is `SHARDED`; from a function that gathers on it is `WHOLE`, until a
    function of a sharded tensor is computed locally.

    Attributes:
        kind: The kind as which time is counted now.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.kind, self._since = ELSEWHERE, perf_counter()
        self.seconds = dict.fromkeys((ELSEWHERE, SHARDED, WHOLE, BACKWARD), 0.0)

    def turn(self, kind: str) -> str:
        """Count time as this kind from here on; return the kind before, to be turned back to."""
        now, before = self._now(), self.kind
        self.seconds[before] += now - self._since
        self.kind, self._since = kind, now
        return before

    def share(self) -> float | None:
        """Return the share of one process's work in modules that was shared, None without any."""
        shared, whole = self.seconds[SHARDED] * self._group.size, self.seconds[WHOLE]
        return shared / (shared + whole) if shared + whole else None

    def _now(self) -> float:
        """Return the time of a clock that stands while this rank waits for others."""
        return perf_counter() - self._group.position.waited
