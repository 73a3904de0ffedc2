"""A wait for nodes or ranks that have not come, which tells every 15 s whom it is for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from autoddp.errors import AutoDDPError

if TYPE_CHECKING:
    from torch.distributed import Store

EVERY = 15.0  # seconds between two lines
NAMED = 8  # of those that are missing, at most


class Patience:
    """One wait for others, from now on: who waits calls `look` now and then."""

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self.seconds, self.say = seconds, say
        self._began = self._told = time.monotonic()
        hours = (time.localtime(time.time() + more) for more in (0, seconds))
        self._since, self._until = (time.strftime("%H:%M:%S", hour) for hour in hours)

    def look(self, missing: Callable[[], str]) -> None:
        """Say who is missing, if it is time to say it again.

        Raises:
            AutoDDPError: The wait is over.
        """
        now = time.monotonic()
        waited = now - self._began
        if waited >= self.seconds:
            raise AutoDDPError(
                f"waited {self.seconds / 60:.0f} minutes, since {self._since}, in vain for "
                f"{missing()}; see what is said there, and start all of them again"
            )
        if now - self._told >= EVERY:
            self._told = now
            self.say(
                f"waiting for {missing()} since {self._since} ({waited:.0f} s), until {self._until}"
            )


def silent(text: str) -> None:
    """Tell the user nothing of a wait."""


def missing(who: str, numbers: Sequence[int], count: int) -> str:
    """Name the nodes or ranks of these numbers, out of `count`."""
    named = ", ".join(map(str, numbers[:NAMED]))
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"{who}{'s' * (len(numbers) > 1)} {named}{more} of {count}"


def roll_call(
    store: Store, rank: int, size: int, limit: timedelta, say: Callable[[str], None]
) -> None:
    """Come to a store where rank 0 waits for all ranks, and says which have not come.

    Raises:
        AutoDDPError: Some have not come in time.
    """
    store.set(f"here/{rank}", "")
    if rank:
        return
    patience, keys = Patience(limit.total_seconds(), say), [f"here/{k}" for k in range(size)]
    while left := [k for k in range(size) if not store.check([keys[k]])]:
        patience.look(lambda: missing("rank", left, size))
        with suppress(dist.DistStoreError):
            store.wait(keys, timedelta(seconds=min(EVERY, limit.total_seconds())))
