"""The timeout of a wait for nodes or ranks, which prints every 15 s who is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from autoddp.errors import AutoDDPError

EVERY = 15.0  # seconds between two lines
NAMED = 8  # of those that are missing, at most


def silent(text: str) -> None:
    """Print nothing about a wait."""


class Timeout:
    """The timeout of one wait, which begins now: the loop that waits calls `check`."""

    def __init__(self, seconds: float, say: Callable[[str], None] = silent) -> None:
        self.seconds, self.say = seconds, say
        self._began = self._printed = time.monotonic()
        hours = (time.localtime(time.time() + more) for more in (0, seconds))
        self._since, self._until = (time.strftime("%H:%M:%S", hour) for hour in hours)

    def check(self, missing: Callable[[], str]) -> None:
        """Print who is missing, if 15 s have passed since the last time.

        Raises:
            AutoDDPError: The time is over.
        """
        now = time.monotonic()
        waited = now - self._began
        if waited >= self.seconds:
            raise AutoDDPError(
                f"waited {self.seconds / 60:.0f} minutes, since {self._since}, in vain for "
                f"{missing()}; see what is said there, and start all of them again"
            )
        if now - self._printed >= EVERY:
            self._printed = now
            self.say(
                f"waiting for {missing()} since {self._since} ({waited:.0f} s), until {self._until}"
            )


def missing(who: str, numbers: Sequence[int], count: int) -> str:
    """Name the nodes or ranks of these numbers, out of `count`."""
    named = ", ".join(map(str, numbers[:NAMED]))
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"{who}{'s' * (len(numbers) > 1)} {named}{more} of {count}"
