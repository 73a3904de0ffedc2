"""The findings of a comparison of two runs: counts, and differences with their sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

# the aspects that are compared, in addition to those of a step
STEPS, PRINT, FILE, ENDING = "steps", "print", "file", "exit code"

OTHER = 1e99  # the size of a difference that is not between numbers
LIKELY = 32.0  # by this factor rounding may differ more than one last bit of each gradient
SMALL = 1e-3  # sizes are relative to at least this value
PARTS = (", norm", ", sum", ", signed sum")  # of a fingerprint
WITHIN = re.compile(f"({'|'.join(PARTS)}|, element [0-9]+)$")  # of a tensor: where it is worst
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
class Amplified:
    """How much a last bit of the gradients becomes, in a run of one process, at each place."""

    sizes: dict[Any, float] = field(default_factory=dict)

    def note(self, found: Difference) -> None:
        """Keep the largest difference of a place up to a step; steps come in order."""
        if found.size != OTHER:
            key = self._key(found)
            self.sizes[key] = size = max(self.sizes.get(key, 0.0), found.size)
            self.sizes[*key, found.step] = size

    def allows(self, found: Difference) -> float:
        """Return the size that a difference at a place may have as well."""
        return LIKELY * self.sizes.get((*self._key(found), found.step), 0.0)

    def _key(self, found: Difference) -> tuple[str, ...]:
        return found.aspect, WITHIN.sub("", found.place)


@dataclass
class Findings:
    """The result of a comparison: counts, and the differences above the tolerance."""

    compared: dict[str, Count] = field(default_factory=dict)  # by aspect
    differences: list[Difference] = field(default_factory=list)
    amplified: Amplified | None = None

    @property
    def equal(self) -> bool:
        """Return whether no difference exceeds the tolerance."""
        return not self.differences

    @property
    def largest(self) -> float:
        """Return the largest difference of all compared numbers."""
        return max((count.worst for count in self.compared.values()), default=0.0)

    def inside(self) -> Findings:
        """Return empty findings for a part of the comparison."""
        return type(self)(amplified=self.amplified)

    def take(self, found: Difference, rtol: float, named: bool = True) -> None:
        """Count a comparison, and keep it if its size exceeds `rtol` and `named` is set."""
        count = self.compared.setdefault(found.aspect, Count())
        count.compared += 1
        if found.size != OTHER:
            count.worst = max(count.worst, found.size)
        if found.size > rtol and self.amplified is not None:
            rtol = max(rtol, self.amplified.allows(found))
        if found.size > rtol:
            count.differ += 1
            self.differences += [found] * named

    def take_all(self, found: Iterable[Difference], rtol: float) -> None:
        """Count and keep several comparisons."""
        for each in found:
            self.take(each, rtol)


class Noting(Findings):
    """The findings of a comparison that only notes how large differences are."""

    def __init__(self, amplified: Amplified) -> None:
        super().__init__(amplified=amplified)

    def inside(self) -> Findings:
        """Return this, which keeps nothing but what it notes."""
        return self

    def take(self, found: Difference, rtol: float, named: bool = True) -> None:
        """Note the size of a difference."""
        assert self.amplified is not None
        self.amplified.note(found)
        super().take(found, OTHER)
