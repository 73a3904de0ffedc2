"""Compare two runs step by step: losses, learning rates, gradients, parameters, generators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from autoddp.tools.record.recording import Entry, Recording
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

# The relative difference that is allowed at the first step, and the most that ever is: sums in
# another order are off by less, and a training carries that further with each step. What was
# rounded to float32 on the way is off by more than is allowed in float64.
ALLOWED = {"float64": (1e-8, 1e-6), "float32": (2e-5, 1e-2)}
HALF = (5e-2, 5e-2)  # bfloat16 and float16 keep 8 and 11 bits
DOUBLES = 20  # steps in which what is allowed doubles
PARTS = ("norm", "sum", "signed sum")  # of a fingerprint
LEAST = 3  # digits of a number that are shown, at least
TOLD = 3  # parameters of a step that are named, those that differ the most
LEAST_PART = 1e-3  # part of the norm of all tensors: what is smaller may be rounding throughout


def allowed(dtypes: list[str], step: int) -> float:
    """Return how far numbers computed from parameters of these types may be off at a step."""
    kinds = [ALLOWED.get(name, HALF) for name in dtypes if "float" in name]
    least, most = max(kinds, default=ALLOWED["float64"])
    return min(most, least * 2.0 ** min(step / DOUBLES, 99))


def compare_runs(want: Recording, got: Recording) -> Findings:
    """Compare rank 0's steps in two runs, and the losses after them."""
    findings = compare_steps(want.steps.get(0, []), got.steps.get(0, []))
    ends = (run.ends.get(0, {}) for run in (want, got))
    a, b = ({"losses": [], "step": None, "line": None, **end} for end in ends)
    findings.take_all(_losses(a, b), allowed(["float32"], 0))
    return findings


def compare_ranks(steps: dict[int, list[Entry]]) -> Findings:
    """Compare the ranks with rank 0: all of them compute one process's numbers."""
    findings = Findings()
    for rank in sorted(steps)[1:]:
        found = compare_steps(steps[0], steps[rank])
        both = findings.counts.setdefault(STEPS, Count())
        both.compared += found.counts[STEPS].compared
        both.differ += len({each.step for each in found.differences})
        findings.differences += [replace(each, rank=rank) for each in found.differences]
    findings.differences.sort(key=lambda found: found.step or 0)
    return findings


def compare_steps(want: list[Entry], got: list[Entry]) -> Findings:
    """Compare the entries of two runs, step by step.

    Of the gradients and parameters of a step only those that differ the most are named.
    """
    findings, names = Findings(), dict[int, list[str]]()
    for a, b in zip(want, got, strict=False):
        rtol, optimizer = allowed(a["dtypes"], a["step"]), a["optimizer"]
        names[optimizer] = a.get("names", names.get(optimizer, []))
        if (optimizer, a["line"]) != (b["optimizer"], b["line"]):
            who = [f"optimizer {x['optimizer']} at {x['line']}" for x in (a, b)]
            findings.take(_at(a, STEPS, "order", who[0], who[1], OTHER), rtol)
        findings.take_all(_losses(a, b), rtol)
        for at, (x, y) in enumerate(zip_longest(a["lr"], b["lr"], fillvalue=0.0)):
            findings.take(_number(a, RATE, f"of group {at}", x, y), rtol)
        for aspect, key in ((GRADIENT, "gradients"), (PARAMETER, "parameters")):
            for at, found in enumerate(_prints(a, aspect, names[optimizer], a[key], b[key])):
                findings.take(found, rtol, named=at < TOLD)
        for name, state in a["generators"].items():
            size = 0.0 if state == b["generators"].get(name) else OTHER
            findings.take(_at(a, GENERATOR, name, "one state", "another", size), rtol)
    both = min(len(want), len(got))
    findings.counts[STEPS] = Count(both)
    if len(want) != len(got):
        following = max(want, got, key=len)[both]
        findings.take(_at(following, STEPS, "", str(len(want)), str(len(got)), OTHER), 0)
        findings.counts[STEPS].compared -= 1
    return findings


def _at(
    entry: Entry, aspect: str, place: str, want: str, got: str, size: float, line: str | None = None
) -> Difference:
    return Difference(aspect, place, want, got, size, entry["step"], line or entry["line"])


def _losses(want: Entry, got: Entry) -> Iterator[Difference]:
    """Yield the losses of the backward passes since the step before."""
    a, b = want["losses"], got["losses"]
    if len(a) != len(b):
        yield _at(want, LOSS, "count", f"{len(a)} backward passes", f"{len(b)}", OTHER)
    for (line, x), (_, y) in zip(a, b, strict=False):
        yield _number(want, LOSS, "", x, y, line)


def _number(
    entry: Entry, aspect: str, place: str, a: float, b: float, line: str | None = None
) -> Difference:
    size = _off(a, b, max(abs(a), abs(b), 1e-12))
    return _at(entry, aspect, place, _shown(a, size), _shown(b, size), size, line)


def _prints(
    entry: Entry, aspect: str, names: list[str], want: list[Any], got: list[Any]
) -> Iterator[Difference]:
    """Yield the fingerprints of tensors; those that differ the most come first."""
    if [x is None for x in want] != [x is None for x in got]:
        there = [sum(x is not None for x in some) for some in (want, got)]
        yield _at(entry, aspect, "count", f"{there[0]} tensors", f"{there[1]}", OTHER)
    total = math.hypot(*(x[0] for x in want if x is not None and math.isfinite(x[0])))
    found = []
    for name, a, b in zip(names, want, got, strict=False):
        if a is not None and b is not None:
            scale = max(a[0], b[0], LEAST_PART * total, 1e-30)
            sizes = [_off(x, y, scale) for x, y in zip(a, b, strict=True)]
            at = max(range(len(PARTS)), key=sizes.__getitem__)
            found.append((sizes[at], f"{name}, {PARTS[at]}", a[at], b[at]))
    for size, place, x, y in sorted(found, key=lambda one: -one[0]):
        yield _at(entry, aspect, place, _shown(x, size), _shown(y, size), size)


def _off(a: float, b: float, scale: float) -> float:
    if a == b or (a != a and b != b):
        return 0.0
    off = abs(a - b) / scale
    return off if off == off else OTHER


def _shown(value: float, size: float) -> str:
    """Write a number with as many digits as it takes to see that it is off by `size`."""
    digits = LEAST + max(0, math.ceil(-math.log10(size))) if 0 < size < OTHER else 9
    return f"{value:.{digits}g}"
