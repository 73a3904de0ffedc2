"""Compare two runs step by step: losses, learning rates, gradients, parameters, generators."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from autoddp.tools.verify.findings import (
    GENERATOR,
    GRADIENT,
    LOSS,
    OTHER,
    PARAMETER,
    RATE,
    STEPS,
    Count,
    Difference,
    Findings,
)

Record = dict[str, Any]

# The relative difference that is allowed at the first step; sums in another order are off by less.
ALLOWED = {"float64": 1e-9, "float32": 2e-5}
HALF = 5e-2  # bfloat16 and float16 keep 8 and 11 bits
DOUBLES, MOST = 20, 1e-2  # float32: what is allowed doubles every so many steps, up to so much
PARTS = ("norm", "sum", "signed sum")  # of a fingerprint
LEAST = 3  # digits of a number that are shown, at least
TOLD = 3  # parameters of a step that are named, those that differ the most
SMALL = 1e-3  # part of the norm of all tensors: what is smaller may be rounding throughout


def allowed(dtypes: list[str], step: int) -> float:
    """Return how far numbers computed from parameters of these types may be off at a step."""
    worst = max(
        (ALLOWED.get(name, HALF) for name in dtypes if "float" in name), default=ALLOWED["float64"]
    )
    if worst != ALLOWED["float32"]:
        return worst
    return min(MOST, worst * 2.0 ** (step / DOUBLES))


def compare_steps(want: list[Record], got: list[Record], rank: int | None = None) -> Findings:
    """Compare one process's records with another run's, step by step.

    Of the gradients and parameters of a step only those that differ the most are named.
    """
    findings, names = Findings(), dict[int, list[str]]()
    for a, b in zip(want, got, strict=False):
        if "names" in a:
            names[a["optimizer"]] = a["names"]
        Step(findings, a, b, rank).compare(names[a["optimizer"]])
    findings.counts[STEPS] = Count(min(len(want), len(got)))
    if len(want) != len(got):
        following = (want if len(want) > len(got) else got)[min(len(want), len(got))]
        numbers, at = (str(len(want)), str(len(got))), (following["step"], following["line"], rank)
        findings.differs(Difference(STEPS, "", *numbers, OTHER, *at))
    return findings


def compare_rest(findings: Findings, want: Record, got: Record) -> None:
    """Compare the losses that no step of an optimizer followed."""
    a, b = ({"step": 0, "line": None, "dtypes": ["float32"], **end} for end in (want, got))
    Step(findings, a, b, None).losses(a.get("losses", []), b.get("losses", []))


def compare_ranks(steps: dict[int, list[Record]]) -> Findings:
    """Compare the ranks with rank 0: all of them compute one process's numbers."""
    findings = Findings()
    for rank in sorted(steps)[1:]:
        found = compare_steps(steps[0], steps[rank], rank)
        both = findings.counts.setdefault(STEPS, Count())
        both.compared += found.counts[STEPS].compared
        both.differ += len({d.step for d in found.differences})
        findings.differences += found.differences
    findings.differences.sort(key=lambda found: found.step or 0)
    return findings


class Step:
    """A step of the two runs that are compared."""

    def __init__(self, findings: Findings, want: Record, got: Record, rank: int | None) -> None:
        self.findings, self.want, self.got, self.rank = findings, want, got, rank
        self.step, self.line = want["step"], want["line"]
        self.rtol = allowed(want["dtypes"], self.step)

    def compare(self, names: list[str]) -> None:
        """Compare all that was recorded, in the order of what causes what."""
        a, b = self.want, self.got
        if (a["optimizer"], a["line"]) != (b["optimizer"], b["line"]):
            self._differs(
                STEPS, "order", f"optimizer {a['optimizer']} at {a['line']}", _who(b), OTHER
            )
        self.losses(a["losses"], b["losses"])
        self._rates(a["lr"], b["lr"])
        self._prints(GRADIENT, names, a["gradients"], b["gradients"])
        self._prints(PARAMETER, names, a["parameters"], b["parameters"])
        for name in a["generators"]:
            same = a["generators"][name] == b["generators"].get(name)
            self.findings.add(GENERATOR)
            if not same:
                self._differs(GENERATOR, name, "one state", "another", OTHER)

    def losses(self, want: list[Any], got: list[Any]) -> None:
        """Compare the losses of the backward passes since the step before."""
        if len(want) != len(got):
            self._differs(LOSS, "count", f"{len(want)} backward passes", f"{len(got)}", OTHER)
        for (line, a), (_, b) in zip(want, got, strict=False):
            self._number(LOSS, "", a, b, max(abs(a), abs(b), 1e-12), line)

    def _rates(self, want: list[float], got: list[float]) -> None:
        for at, (a, b) in enumerate(zip_longest(want, got, fillvalue=0.0)):
            self._number(RATE, f"of group {at}", a, b, max(abs(a), abs(b), 1e-30))

    def _prints(self, aspect: str, names: list[str], want: list[Any], got: list[Any]) -> None:
        """Compare fingerprints; those that differ the most come first."""
        if [x is None for x in want] != [x is None for x in got]:
            there = [sum(x is not None for x in some) for some in (want, got)]
            self._differs(aspect, "count", f"{there[0]} tensors", f"{there[1]}", OTHER)
        total = math.hypot(*(x[0] for x in want if x is not None and math.isfinite(x[0])))
        found = []
        for name, a, b in zip(names, want, got, strict=False):
            if a is not None and b is not None:
                scale = max(a[0], b[0], SMALL * total, 1e-30)
                found.append(
                    (max(_off(x, y, scale) for x, y in zip(a, b, strict=True)), name, a, b)
                )
        for at, (size, name, a, b) in enumerate(sorted(found, key=lambda one: -one[0])):
            self.findings.add(aspect, size, self.step, name)
            if size > self.rtol:
                part, one, other = _shown(a, b, size)
                made = replace(self._difference(aspect, name, one, other, size), part=part)
                self.findings.differs(made, named=at < TOLD)

    def _number(
        self, aspect: str, place: str, a: float, b: float, scale: float, line: str | None = None
    ) -> None:
        size = _off(a, b, scale)
        self.findings.add(aspect, size, self.step)
        if size > self.rtol:
            self._differs(aspect, place, _number(a, size), _number(b, size), size, line)

    def _differs(
        self, aspect: str, place: str, want: str, got: str, size: float, line: str | None = None
    ) -> None:
        self.findings.differs(self._difference(aspect, place, want, got, size, line))

    def _difference(
        self, aspect: str, place: str, want: str, got: str, size: float, line: str | None = None
    ) -> Difference:
        return Difference(aspect, place, want, got, size, self.step, line or self.line, self.rank)


def _off(a: float, b: float, scale: float) -> float:
    if a == b or (a != a and b != b):
        return 0.0
    off = abs(a - b) / scale
    return off if off == off else OTHER


def _shown(want: list[float], got: list[float], size: float) -> tuple[str, str, str]:
    """Return the name and both values of the fingerprint's number that is off the most."""
    at = max(range(len(PARTS)), key=lambda k: abs(want[k] - got[k]))
    return PARTS[at], _number(want[at], size), _number(got[at], size)


def _number(value: float, size: float) -> str:
    """Write a number with as many digits as it takes to see that it is off by `size`."""
    return (
        f"{value:.{LEAST + max(0, math.ceil(-math.log10(size)))}g}"
        if 0 < size < OTHER
        else f"{value:.9g}"
    )


def _who(record: Record) -> str:
    return f"optimizer {record['optimizer']} at {record['line']}"
