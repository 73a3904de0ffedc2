"""Collectives that a rank has entered without waiting for the others, until they meet again."""

from __future__ import annotations

import zlib
from collections import deque

from autoddp import torch_internals

Recent = tuple[int, list[tuple[int, str]]]
Stamps = deque[tuple[int, bytes]]
KEPT = 256  # stamps that were passed by, and are known by their words


class Passed:
    """The collectives that a rank has entered since its last meeting, without waiting.

    If there are many, only the newest are known by their words.
    """

    def __init__(self) -> None:
        self.count = self._total = 0
        # the number of meetings, the stamps since, that of a meeting in progress: one value, so
        # that a thread that looks finds it whole
        self._now: tuple[int, Stamps, str | None] = (0, deque(maxlen=KEPT), None)

    @property
    def sum(self) -> bytes:
        """Return how many collectives were entered, and a sum over their words."""
        return b"%d %d" % (self.count, self._total)

    def add(self, stamp: bytes) -> None:
        """Add the stamp of a collective that this rank enters."""
        self._now[1].append((self.count, stamp))
        self._total = zlib.crc32(stamp, self._total)
        self.count += 1

    def meet(self, stamp: str) -> None:
        """Note that this rank waits for all others at this stamp."""
        self._now = (*self._now[:2], stamp)

    def met(self) -> None:
        """Begin anew: all ranks were at one place, and had passed by the same.

        Inside a backward the count goes on, since other threads do.
        """
        meetings, stamps, _ = self._now
        if not torch_internals.in_backward():
            self.count = self._total = 0
            stamps = deque(maxlen=KEPT)
        self._now = (meetings + 1, stamps, None)

    def newest(self) -> str:
        """Return the newest stamp in words; if there is none, words for a device that computes."""
        stamps = self._now[1]
        return stamps[-1][1].decode().split(" ", 1)[1] if stamps else "what its device computes"

    def recent(self) -> Recent:
        """Return the number of meetings, and the newest stamps; a meeting in progress is last."""
        meetings, stamps, meeting = self._now
        found = [(number, said.decode()) for number, said in tuple(stamps)]
        following = found[-1][0] + 1 if found else 0
        return meetings, found if meeting is None else [*found, (following, meeting)]
