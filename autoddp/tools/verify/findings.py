"""The findings of a comparison of two runs: counts, and differences with their sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# the aspects that are compared, in addition to those of a step
STEPS, PRINT, FILE, ENDING = "steps", "print", "file", "exit code"

OTHER = 1e99  # the size of a difference that is not between numbers
SMALL = 1e-3  # sizes are relative to at least this value
LEAST_PART = 1e-3  # tensors below this part of the norm of all may consist of rounding errors


@dataclass(frozen=True)
class Difference:
    """Two compared values of two runs, their place in words, and how much they differ."""

    aspect: str
    place: str
    want: str  # of one process
    got: str
    size: float  # relative to the larger value; `OTHER` if the values are not numbers
    step: int | None = None
    line: str | None = None  # of the script
    rank: int = 0

    @property
    def what(self) -> str:
        """Return the aspect, the place, and the rank if it is not 0."""
        return f"{self.aspect} {self.place}".strip() + (f" on rank {self.rank}" * (self.rank > 0))

    @property
    def off(self) -> str:
        """Return the size as text; empty if the values are not numbers."""
        return "" if self.size in (OTHER, 0.0) else f"{self.size:.1e}"

    def described(self) -> str:
        """Return the difference in one line."""
        at = [f"step {self.step}"] * bool(self.step) + [self.line or ""] * bool(self.line)
        where = ", ".join(at) + ": " * bool(at)
        off = f" (off by {self.off})" if self.off else ""
        return f"{where}{self.what}: {self.got} instead of {self.want}{off}"


@dataclass
class Count:
    """The numbers of comparisons and differences of one aspect, and the largest difference."""

    compared: int = 0
    differ: int = 0
    worst: float = 0.0


@dataclass
class Findings:
    """The result of a comparison: counts, and the differences above the tolerance."""

    compared: dict[str, Count] = field(default_factory=dict)  # by aspect
    differences: list[Difference] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Return whether no difference exceeds the tolerance."""
        return not self.differences

    @property
    def largest(self) -> float:
        """Return the largest difference of all compared numbers."""
        return max((count.worst for count in self.compared.values()), default=0.0)

    def take(self, found: Difference, rtol: float, named: bool = True) -> None:
        """Count a comparison, and keep it if its size exceeds `rtol` and `named` is set."""
        count = self.compared.setdefault(found.aspect, Count())
        count.compared += 1
        if found.size != OTHER:
            count.worst = max(count.worst, found.size)
        if found.size > rtol:
            count.differ += 1
            self.differences += [found] * named

    def take_all(self, found: Iterable[Difference], rtol: float) -> None:
        """Count and keep several comparisons."""
        for each in found:
            self.take(each, rtol)
