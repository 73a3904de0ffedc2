"""The place where this rank waits for others, for threads that watch it."""

from __future__ import annotations

from time import monotonic  # a script's is patched

# what a rank may be busy with: it waits for others, or does what they wait for; in a backward it
# waits for them and computes
WAITING, ACTING, BACKWARD = "waiting", "acting", "backward"


class Position:
    """The innermost thing that this rank is busy with, since when, and the time it has waited."""

    def __init__(self) -> None:
        # seconds, at the ends of waits; in a backward waiting cannot be told from computing
        self.waited = 0.0
        self.waited_in_backward = 0.0  # of these, for gradients
        # kind, in words, since when: one value, so that another thread reads it whole
        self.now = ("", "", 0.0)

    def at(self, kind: str, words: str) -> At:
        """Mark this rank as busy with `kind`, described by `words`, inside; add up waits."""
        return At(self, kind, words)


class At:
    """A stay at a place, as a context manager; a step has several, so it is no generator."""

    __slots__ = ("_before", "_kind", "_position", "_words")

    def __init__(self, position: Position, kind: str, words: str) -> None:
        self._position, self._kind, self._words = position, kind, words

    def __enter__(self) -> None:
        position = self._position
        self._before = position.now
        position.now = (self._kind, self._words, monotonic())

    def __exit__(self, *_: object) -> None:
        position = self._position
        began, position.now = position.now[2], self._before
        if self._kind == WAITING != self._before[0]:
            seconds = monotonic() - began
            position.waited += seconds
            if self._before[0] == BACKWARD:
                position.waited_in_backward += seconds
