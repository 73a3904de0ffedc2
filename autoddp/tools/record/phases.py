"""Wall time of the step that goes on, by what it is spent in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter  # the clock itself: a script's own is answered by rank 0

LOADING, GATHERING, GRADIENTS = "loading", "gathering", "gradients"
PARTS = (LOADING, GATHERING, GRADIENTS)  # the rest of a step is computing
RECORDING = "recording"  # what a recorder itself takes, which is no part of a step


class Parts:
    """The parts of a step and their seconds; nested parts count as the outermost of them.

    A GPU works behind Python's back: it is waited for where a part begins and where it ends.
    """

    def __init__(self) -> None:
        self.inside: str | None = None
        self.entered = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin a step, in which nothing is spent yet."""
        self.began, self.spent = now(), dict.fromkeys((*PARTS, RECORDING), 0.0)

    def begin(self, part: str) -> bool:
        """Begin a part here, and return whether it is the outermost."""
        outermost = self.inside is None
        if outermost:
            self.inside, self.entered = part, now()
        return outermost

    def end(self) -> None:
        """End the part that was begun, if any."""
        if self.inside is not None:
            self.spent[self.inside] += now() - self.entered
            self.inside = None

    @contextmanager
    def spend(self, part: str) -> Iterator[None]:
        """Spend the time of what is done in here on a part."""
        outermost = self.begin(part)
        try:
            yield
        finally:
            if outermost:
                self.end()

    def record(self) -> dict[str, float]:
        """Return the seconds of the step, and those of its parts."""
        seconds = now() - self.began - self.spent.pop(RECORDING)
        return {"seconds": seconds} | self.spent


def now() -> float:
    """Read the clock once the GPU has come as far as Python has, unless a graph is captured."""
    from autoddp.comm import accelerator

    if not accelerator.capturing():
        accelerator.synchronize()
    return perf_counter()
