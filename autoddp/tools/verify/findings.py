"""The findings of a comparison of two runs: how much was compared, and what differs how far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# The aspects, in the order in which a step's first divergence is told.
LOSS, RATE, GRADIENT, PARAMETER, GENERATOR = (
    "loss",
    "learning rate",
    "gradient",
    "parameter",
    "generator",
)
STEPS, PRINT, FILE, ENDING = "steps", "print", "file", "ending"
ASPECTS = (STEPS, LOSS, RATE, GRADIENT, PARAMETER, GENERATOR, ENDING, PRINT, FILE)

OTHER = math.inf  # the size of a difference that is not between numbers
WITHIN = 10.0  # a difference up to so many times that of one process alone is rounding


@dataclass(frozen=True)
class Difference:
    """A place where two runs are not the same.

    Attributes:
        aspect: The kind of what differs, one of `ASPECTS`.
        place: The place, in words that another comparison has for the same place, too.
        want: What one process has.
        got: What the other run has.
        size: How large it is, relative to the larger value; `OTHER` where it is no matter of size.
        step: The number of the step, if the difference is at one.
        line: The line of the script, if it is known.
        rank: The rank that differs, if ranks are compared with rank 0.
        part: The number that is shown: of a gradient its norm or a sum.
    """

    aspect: str
    place: str
    want: str
    got: str
    size: float
    step: int | None = None
    line: str | None = None
    rank: int | None = None
    part: str = ""

    @property
    def at(self) -> str:
        """Return the step and the line in words, as far as they are known."""
        return ", ".join(
            ([f"step {self.step}"] if self.step else []) + ([self.line] if self.line else [])
        )

    @property
    def what(self) -> str:
        """Return the aspect, the place and the part in words."""
        what = f"{self.aspect} {self.place}".strip() if self.aspect != self.place else self.place
        return what + (f", {self.part}" if self.part else "")

    @property
    def off(self) -> str:
        """Return how far the value is off, an empty text if that is no number."""
        return "" if self.size in (OTHER, 0.0) else f"{self.size:.1e}"

    def described(self) -> str:
        """Describe the difference in one line."""
        off = f" (off by {self.off})" if self.off else ""
        whose = "" if self.rank is None else f" on rank {self.rank}, against rank 0"
        return (
            f"{self.at + ': ' if self.at else ''}{self.what}{whose}: "
            f"{self.got} instead of {self.want}{off}"
        )


@dataclass
class Count:
    """The counts of one aspect: how many were compared and differ, and the largest difference."""

    compared: int = 0
    differ: int = 0
    worst: float = 0.0
    # by place, the steps at which the difference was the largest so far
    grown: dict[str, list[tuple[int, float]]] = field(default_factory=dict)


@dataclass
class Findings:
    """The results of one comparison: counts, differences, excused differences and notes."""

    counts: dict[str, Count] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    excused: list[Difference] = field(default_factory=list)  # as in two runs of one process
    notes: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Return whether nothing differs by more than is allowed."""
        return not self.differences

    @property
    def steps(self) -> bool:
        """Return whether steps differ, not only prints or files, which a clock may change."""
        return any(found.step for found in self.differences)

    @property
    def apart(self) -> bool:
        """Return whether anything differs, excused or not."""
        return bool(self.differences or self.excused)

    @property
    def largest(self) -> float:
        """Return the largest difference of all that was compared."""
        return max((count.worst for count in self.counts.values()), default=0.0)

    @property
    def first(self) -> Difference | None:
        """Return the difference that came first, None if there is none."""
        return self.differences[0] if self.differences else None

    def add(self, aspect: str, size: float = 0.0, step: int = 0, place: str = "") -> None:
        """Count one more comparison, with the size of its difference."""
        count = self.counts.setdefault(aspect, Count())
        count.compared += 1
        if size != OTHER and size > 0:
            count.worst = max(count.worst, size)
            grown = count.grown.setdefault(place, [])
            if not grown or size > grown[-1][1]:
                grown.append((step, size))

    def differs(self, found: Difference, named: bool = True) -> None:
        """Count a difference that is not allowed, and keep it if it is to be named."""
        self.counts.setdefault(found.aspect, Count()).differ += 1
        if named:
            self.differences.append(found)

    def differ(self, aspect: str) -> int:
        """Return how many of an aspect differ, 0 if all that were named are excused."""
        excused = any(found.aspect == aspect for found in self.excused)
        return 0 if excused and not self.of(aspect) else self.counts[aspect].differ

    def of(self, aspect: str) -> list[Difference]:
        """Return the differences of an aspect that have no excuse."""
        return [found for found in self.differences if found.aspect == aspect]

    def worst(self, aspect: str, step: int | None = None, place: str = "") -> float:
        """Return the largest difference of an aspect at a place, up to a step."""
        grown = self.counts[aspect].grown.get(place, []) if aspect in self.counts else []
        return max((size for at, size in grown if step is None or at <= step), default=0.0)

    def excuse(self, control: Findings) -> None:
        """Set apart what two runs of one process differ in, too, about as much."""
        places = {(found.aspect, found.place): found.size for found in control.differences}
        left: list[Difference] = []
        for found in self.differences:
            there = places.get((found.aspect, found.place), 0.0)
            if found.size != OTHER:
                # each gradient and each parameter has its own size
                place = found.place if found.aspect in (GRADIENT, PARAMETER) else ""
                there = max(there, control.worst(found.aspect, found.step, place))
            (self.excused if found.size <= WITHIN * there else left).append(found)
        self.differences = left
