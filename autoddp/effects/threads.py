"""What a thread of the script gets on rank 0, for the same thread of other ranks.

Threads are in no common order, but the calls on one object are: the n-th outcome of rank 0 is the
n-th of every rank. Each object has connections of its own, made at its first call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any

from autoddp.comm.control_plane import connect
from autoddp.comm.line import Line, Lines
from autoddp.comm.outcome import Outcome
from autoddp.comm.timeout import Timeout

if TYPE_CHECKING:
    from autoddp.comm.group import Group

TICK = 0.01  # seconds between two looks at whether rank 0 has come
LONG = timedelta(days=365).total_seconds()  # as a thread of one process may wait


class Threads:
    """The connections of one rank for its threads, by the numbers of objects."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._lines: dict[int, Lines] = {}
        self._busy: dict[int, Lock] = {}
        os.register_at_fork(after_in_child=self.close)

    def follow(self, number: int, act: Callable[[], Any]) -> Any:
        """Return what `act` returns on rank 0, or raise what it raises there."""
        if self.group.rank:
            with self._busy.setdefault(number, Lock()):
                return Outcome.from_bytes(self._of(number)[0].read()).unwrap()
        outcome = Outcome.of(act)
        with self._busy.setdefault(number, Lock()):
            self._of(number).send(outcome.to_bytes())
        return outcome.unwrap()

    def close(self) -> None:
        """Close all connections."""
        for lines in self._lines.values():
            for line in lines.values():
                line.close()
        self._lines.clear()

    def _of(self, number: int) -> Lines:
        if number not in self._lines:
            group, key = self.group, f"threads/{number}"
            while group.rank and not group.store.check([key]):
                time.sleep(TICK)  # a wait would keep the script's thread from the store
            address = "" if group.size == group.world.local_world_size else group.world.master_addr
            timeout, ranks = Timeout(LONG), list(range(group.size))
            found = connect(group.rank, ranks, group.store, key, timeout, address)
            self._lines[number] = Lines({rank: Line(rank, end) for rank, end in found.items()})
        return self._lines[number]
