"""A wait for nodes or ranks that have not come, which says every 15 s whom it is for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from autoddp.errors import AutoDDPError

EVERY = 15.0  # seconds between two lines
NAMED = 8  # of those that are missing, at most


def silent(text: str) -> None:
    """Say nothing about a wait."""


class Patience:
    """One wait for others, from now on: who waits calls `look` now and then."""

    def __init__(self, seconds: float, say: Callable[[str], None] = silent) -> None:
        self.seconds, self.say = seconds, say
        self._began = self._told = time.monotonic()
        hours = (time.localtime(time.time() + more) for more in (0, seconds))
        self._since, self._until = (time.strftime("%H:%M:%S", hour) for hour in hours)

    def look(self, missing: Callable[[], str]) -> None:
        """Say who is missing, if it is time to say that again.

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


def missing(who: str, numbers: Sequence[int], count: int) -> str:
    """Name the nodes or ranks of these numbers, out of `count`."""
    named = ", ".join(map(str, numbers[:NAMED]))
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"{who}{'s' * (len(numbers) > 1)} {named}{more} of {count}"
