"""The time spent in module calls and backward passes, on sharded or on whole tensors."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoddp.comm.group import Group

ELSEWHERE, SHARDED, WHOLE, BACKWARD = "elsewhere", "sharded", "whole", "backward"
REPLICATED = "replicated"
KINDS = (ELSEWHERE, SHARDED, WHOLE, BACKWARD, REPLICATED)


class Work:
    """Seconds of each kind of work; nested work counts once, for the innermost kind.

    Inside a module's call the kind is `SHARDED`; a function that gathers sets it to `WHOLE`, and
    the next function on local shards sets it back. Where ranks share no work, all of it is
    `REPLICATED`.

    Attributes:
        kind: The current kind.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.kind, self._since = ELSEWHERE, perf_counter()
        self.seconds = dict.fromkeys(KINDS, 0.0)

    def turn(self, kind: str) -> str:
        """Count time for this kind from now on; return the previous kind, to restore it."""
        now, before = self._now(), self.kind
        self.seconds[before] += now - self._since
        self.kind, self._since = kind, now
        return before

    def share(self) -> float | None:
        """Return the fraction of the work in modules that was sharded, None without any work."""
        self.turn(self.kind)  # what goes on counts, too
        shared = self.seconds[SHARDED] * self._group.size
        whole = self.seconds[WHOLE] + self.seconds[REPLICATED]
        return shared / (shared + whole) if shared + whole else None

    def _now(self) -> float:
        """Return the time, less the time in which this rank waited for others."""
        return perf_counter() - self._group.position.waited
