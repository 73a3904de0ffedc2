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
from autoddp.tools.verify.findings import (
    LEAST_PART,
    OTHER,
    PARTS,
    STEPS,
    Count,
    Difference,
    Findings,
)

# The relative tolerances at the first step, and at any step. Sums in another order differ by less,
# and training amplifies this with each step. A value that was rounded to float32 differs by more
# than the tolerance of float64.
ALLOWED = {"float64": (1e-8, 1e-6), "float32": (2e-5, 1e-2)}
HALF = (5e-2, 5e-2)  # bfloat16 and float16 keep 8 and 11 bits
DOUBLES = 20  # steps in which the tolerance doubles
NAMED = 3  # the most differences of an aspect that are listed for a step


def allowed(dtypes: list[str], step: int) -> float:
    """Return the relative tolerance at a step for numbers from parameters of these types."""
    kinds = [ALLOWED.get(name, HALF) for name in dtypes if "float" in name]
    least, most = max(kinds, default=ALLOWED["float64"])
    return min(most, least * 2.0 ** min(step / DOUBLES, 99))


def compare_runs(want: Recording, got: Recording, findings: Findings | None = None) -> Findings:
    """Compare all ranks of a run with one process: steps, and losses after the last step."""
    findings = Findings() if findings is None else findings
    one, count = want.steps.get(0, []), Count()
    findings.compared[STEPS] = count
    for rank in sorted({0, *got.steps}):
        entries = got.steps.get(rank, [])
        for a, b in zip(one, entries, strict=False):
            compare_step(findings, a, b, rank)
        count.compared += min(len(one), len(entries))
        if len(one) != len(entries):
            extra = max(one, entries, key=len)[min(len(one), len(entries))]
            at, counts = (extra["step"], extra["line"], rank), (len(one), len(entries))
            difference = Difference(STEPS, "", str(counts[0]), str(counts[1]), OTHER, *at)
            findings.differences.append(difference)
            count.differ += 1
        ends = want.ends.get(0, {}), got.ends.get(rank, {})
        if all(LOSS in end for end in ends):
            findings.take_all(_numbers(LOSS, *ends, rank), allowed(["float32"], 0))
    # losses after the last step have no step
    findings.differences.sort(key=lambda each: (each.step is None, each.step, each.rank))
    return findings


def compare_step(findings: Findings, want: Entry, got: Entry, rank: int = 0) -> None:
    """Compare the entries of one step of one process and of a rank."""
    rtol = allowed(want["dtypes"], want["step"])
    for aspect in (LOSS, RATE, GENERATOR, GRADIENT, PARAMETER):
        numbers = sorted(_numbers(aspect, want, got, rank), key=lambda each: -each.size)
        for at, difference in enumerate(numbers):
            findings.take(difference, rtol, named=at < NAMED)


def _numbers(aspect: str, want: Entry, got: Entry, rank: int) -> Iterator[Difference]:
    """Yield the difference of each number; of a fingerprint, the largest one."""
    of_one, of_rank = want[aspect], got[aspect]
    total = math.hypot(*(x[0] for x in of_one.values() if len(x) > 1 and math.isfinite(x[0])))
    lines = want["lines"] if aspect == LOSS else {}
    for name in of_one | of_rank:
        at = want.get("step"), lines.get(name, want.get("line")), rank
        a, b = of_one.get(name), of_rank.get(name)
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
