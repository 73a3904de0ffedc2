"""Collectives that a rank has entered without waiting for the others, until they meet again."""

from __future__ import annotations

import zlib
from collections import deque

from autoddp import torch_internals

Recent = tuple[int, list[tuple[int, str]]]
Stamps = deque[tuple[int, bytes]]
KEPT = 256  # stamps that were passed by, and are known by their words


class Passed:
    """What a rank has passed by since its last meeting; of long ones the newest are known by their words."""

    def __init__(self) -> None:
        self.count = self._total = 0
        # the number of meetings, the stamps since, that of a meeting in progress: one value for who looks
        self._now: tuple[int, Stamps, str | None] = (0, deque(maxlen=KEPT), None)

    @property
    def sum(self) -> bytes:
        """How many, and a sum over their words."""
        return b"%d %d" % (self.count, self._total)

    def add(self, stamp: bytes) -> None:
        """One more."""
        self._now[1].append((self.count, stamp))
        self._total = zlib.crc32(stamp, self._total)
        self.count += 1

    def meet(self, stamp: str) -> None:
        """This rank waits for all others here."""
        self._now = (*self._now[:2], stamp)

    def met(self) -> None:
        """All ranks were at one place, and had passed by the same; inside a backward other threads go on."""
        meetings, stamps, _ = self._now
        if not torch_internals.in_backward():
            self.count = self._total = 0
            stamps = deque(maxlen=KEPT)
        self._now = (meetings + 1, stamps, None)

    def newest(self) -> str:
        """The words of the last one."""
        stamps = self._now[1]
        return stamps[-1][1].decode().split(" ", 1)[1] if stamps else "what its device computes"

    def recent(self) -> Recent:
        """The number of meetings, and the newest stamps by their numbers; after them that of a meeting."""
        meetings, stamps, meeting = self._now
        found = [(number, said.decode()) for number, said in tuple(stamps)]
        following = found[-1][0] + 1 if found else 0
        return meetings, found if meeting is None else [*found, (following, meeting)]
