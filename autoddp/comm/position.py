"""The place where this rank waits for others, for whoever asks from another thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

# what a rank may be in the midst of: the first four wait for others, and a backward computes, too
COLLECTIVE, EFFECT, MEETING, BACKWARD, ACTING = (
    "collective",
    "effect",
    "meeting",
    "backward",
    "acting",
)
WAITING = (COLLECTIVE, EFFECT, MEETING)


class Position:
    """The innermost thing that this rank is busy with, since when, and how long it has waited."""

    def __init__(self) -> None:
        # seconds, at the ends of waits; in a backward waiting cannot be told from computing
        self.waited = 0.0
        # kind, in words, since when: one value, so that a reader finds it whole
        self.now = ("", "", 0.0)

    @contextmanager
    def at(self, kind: str, words: str) -> Iterator[None]:
        """Mark this rank as busy with `kind`, described by `words`, in the body; add up waits."""
        began = time.monotonic()
        before, self.now = self.now, (kind, words, began)
        try:
            yield
        finally:
            self.now = before
            if kind in WAITING and before[0] not in WAITING:
                self.waited += time.monotonic() - began
