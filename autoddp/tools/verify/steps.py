"""Compare two runs step by step: losses, learning rates, gradients, parameters, generators."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoddp.tools.record.recording import (
    GENERATOR,
    GRADIENT,
    LOSS,
    PARAMETER,
    RATE,
    Entry,
    Recording,
)
from autoddp.tools.verify.findings import OTHER, STEPS, Count, Difference, Findings

# The relative difference that is allowed at the first step, and the most that ever is: sums in
# another order are off by less, and a training carries that further with each step. What was
# rounded to float32 on the way is off by more than is allowed in float64.
ALLOWED = {"float64": (1e-8, 1e-6), "float32": (2e-5, 1e-2)}
HALF = (5e-2, 5e-2)  # bfloat16 and float16 keep 8 and 11 bits
DOUBLES = 20  # steps in which what is allowed doubles
PARTS = (", norm", ", sum", ", signed sum")  # of a fingerprint
NAMED = 3  # places of an aspect of a step that are named, those that differ the most
LEAST_PART = 1e-3  # part of the norm of all tensors: what is smaller may be rounding throughout


def allowed(dtypes: list[str], step: int) -> float:
    """Return how far numbers computed from parameters of these types may be off at a step."""
    kinds = [ALLOWED.get(name, HALF) for name in dtypes if "float" in name]
    least, most = max(kinds, default=ALLOWED["float64"])
    return min(most, least * 2.0 ** min(step / DOUBLES, 99))


def compare_runs(want: Recording, got: Recording) -> Findings:
    """Compare all ranks of a run with one process, step by step, and the losses after them."""
    findings, one, count = Findings(), want.steps.get(0, []), Count()
    findings.compared[STEPS] = count
    for rank in sorted({0, *got.steps}):
        mine = got.steps.get(rank, [])
        for a, b in zip(one, mine, strict=False):
            compare_step(findings, a, b, rank)
        count.compared += min(len(one), len(mine))
        if len(one) != len(mine):
            following = max(one, mine, key=len)[min(len(one), len(mine))]
            at, counts = (following["step"], following["line"], rank), (len(one), len(mine))
            found = Difference(STEPS, "", str(counts[0]), str(counts[1]), OTHER, *at)
            findings.differences.append(found)
            count.differ += 1
        ends = want.ends.get(0, {}), got.ends.get(rank, {})
        if all(LOSS in end for end in ends):
            findings.take_all(_numbers(LOSS, *ends, rank), allowed(["float32"], 0))
    # what follows the last step has no number of a step
    findings.differences.sort(key=lambda found: (found.step is None, found.step, found.rank))
    return findings


def compare_step(findings: Findings, want: Entry, got: Entry, rank: int = 0) -> None:
    """Compare the entries of a step of one process and of a rank."""
    rtol = allowed(want["dtypes"], want["step"])
    for aspect in (LOSS, RATE, GENERATOR, GRADIENT, PARAMETER):
        numbers = sorted(_numbers(aspect, want, got, rank), key=lambda found: -found.size)
        for at, found in enumerate(numbers):
            findings.take(found, rtol, named=at < NAMED)


def _numbers(aspect: str, want: Entry, got: Entry, rank: int) -> Iterator[Difference]:
    """Yield the difference of each number, or of a fingerprint that number which differs most."""
    theirs, ours = want[aspect], got[aspect]
    total = math.hypot(*(x[0] for x in theirs.values() if len(x) > 1 and math.isfinite(x[0])))
    lines = want["lines"] if aspect == LOSS else {}
    for name in theirs | ours:
        at = want.get("step"), lines.get(name, want.get("line")), rank
        a, b = theirs.get(name), ours.get(name)
        if a is None or b is None:
            x, y = ("nothing" if x is None else f"{x[0]:.10g}" for x in (a, b))
            yield Difference(aspect, name, x, y, OTHER, *at)
            continue
        scale = max(abs(a[0]), abs(b[0]), LEAST_PART * total, 1e-30)
        sizes = [_off(x, y, scale) for x, y in zip(a, b, strict=True)]
        part = sizes.index(size := max(sizes))
        size = OTHER if size and aspect == GENERATOR else size
        name += PARTS[part] if len(a) > 1 else ""
        shown = f"{a[part]:.10g}", f"{b[part]:.10g}"
        x, y = ("one state", "another") if aspect == GENERATOR else shown
        yield Difference(aspect, name, x, y, size, *at)


def _off(a: float, b: float, scale: float) -> float:
    if a == b or (a != a and b != b):
        return 0.0
    off = abs(a - b) / scale
    return off if off == off else OTHER
