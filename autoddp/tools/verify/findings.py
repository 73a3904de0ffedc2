"""What a comparison of two runs found: how much was compared, how far it is off, where it differs."""

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
STEPS, PRINT, FILE, ENDING, RANK = "steps", "print", "file", "ending", "rank"
ASPECTS = (STEPS, LOSS, RATE, GRADIENT, PARAMETER, GENERATOR, ENDING, PRINT, FILE)

OTHER = math.inf  # the size of a difference that is no number's
WITHIN = 10.0  # a difference is rounding if it is no larger than so many times that of one process alone


@dataclass(frozen=True)
class Difference:
    """One place where two runs are not the same.

    Attributes:
        aspect: What differs, one of `ASPECTS`.
        place: Where, so that another comparison has the same words for the same place.
        want: What one process has.
        got: What the other run has.
        size: How large it is, relative to the larger value; `OTHER` where it is no matter of size.
        step: The step, if it is at one.
        line: The line of the script, if it is known.
        rank: Whose, if ranks are compared with each other.
        part: What of it is shown, of a gradient its norm or a sum.
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
        """The step and the line."""
        return ", ".join(([f"step {self.step}"] if self.step else []) + ([self.line] if self.line else []))

    @property
    def what(self) -> str:
        """The aspect and the place."""
        what = f"{self.aspect} {self.place}".strip() if self.aspect != self.place else self.place
        return what + (f", {self.part}" if self.part else "")

    @property
    def off(self) -> str:
        """How far it is off, if that is a number."""
        return "" if self.size in (OTHER, 0.0) else f"{self.size:.1e}"

    def told(self) -> str:
        """In one line."""
        off = f" (off by {self.off})" if self.off else ""
        whose = "" if self.rank is None else f" on rank {self.rank}, against rank 0"
        return (
            f"{self.at + ': ' if self.at else ''}{self.what}{whose}: {self.got} instead of {self.want}{off}"
        )


@dataclass
class Count:
    """Of one aspect: how many were compared, how many of them differ, and the largest difference of all."""

    compared: int = 0
    differ: int = 0
    worst: float = 0.0
    grown: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # largest so far, by place


@dataclass
class Findings:
    """All of one comparison."""

    counts: dict[str, Count] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    excused: list[Difference] = field(default_factory=list)  # two runs of one process differ so, too
    notes: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs by more than is allowed."""
        return not self.differences

    @property
    def steps(self) -> bool:
        """Whether steps differ, not only what was printed or written: a clock's reading does."""
        return any(found.step for found in self.differences)

    @property
    def apart(self) -> bool:
        """Whether anything differs, excused or not."""
        return bool(self.differences or self.excused)

    @property
    def largest(self) -> float:
        """The largest difference of all that was compared."""
        return max((count.worst for count in self.counts.values()), default=0.0)

    @property
    def first(self) -> Difference | None:
        """The one that came first."""
        return self.differences[0] if self.differences else None

    def add(self, aspect: str, size: float = 0.0, step: int = 0, place: str = "") -> None:
        """One more was compared."""
        count = self.counts.setdefault(aspect, Count())
        count.compared += 1
        if size != OTHER and size > 0:
            count.worst = max(count.worst, size)
            grown = count.grown.setdefault(place, [])
            if not grown or size > grown[-1][1]:
                grown.append((step, size))

    def differs(self, found: Difference, named: bool = True) -> None:
        """One that is not allowed; not all of them are named."""
        self.counts.setdefault(found.aspect, Count()).differ += 1
        if named:
            self.differences.append(found)

    def differ(self, aspect: str) -> int:
        """How many of an aspect differ, if any of those that were named has no excuse."""
        return self.counts[aspect].differ if self.of(aspect) else 0

    def of(self, aspect: str) -> list[Difference]:
        """Those of an aspect."""
        return [found for found in self.differences if found.aspect == aspect]

    def worst(self, aspect: str, step: int | None = None, place: str = "") -> float:
        """The largest difference of an aspect at a place, up to a step."""
        grown = self.counts[aspect].grown.get(place, []) if aspect in self.counts else []
        return max((size for at, size in grown if step is None or at <= step), default=0.0)

    def excuse(self, control: Findings) -> None:
        """Set apart what two runs of one process differ in, too, about as much."""
        places = {(found.aspect, found.place): found.size for found in control.differences}
        left: list[Difference] = []
        for found in self.differences:
            there = places.get((found.aspect, found.place), 0.0)
            if found.size != OTHER:
                place = found.place if found.aspect in (GRADIENT, PARAMETER) else ""  # each has its own
                there = max(there, control.worst(found.aspect, found.step, place))
            (self.excused if found.size <= WITHIN * there else left).append(found)
        self.differences = left
