"""Known causes of differences between ranks and one process, with their fixes."""

from __future__ import annotations

from autoddp.tools.record.recording import GENERATOR, LOSS
from autoddp.tools.verify.findings import ENDING, Findings

LARGE = 1e-3  # if first losses of two runs of one process differ by more, it is not reproducible
EARLY = 3  # the first losses are those before this step

UNKNOWN = (
    "unknown; unless you used --batchnorm local, --loading rows, --draws own, --disable, --rowwise "
    "or autoddp.rowwise, this is a bug of autoddp: please report it with the file of --json"
)
ROUNDING = (
    "in float64 all is equal: the last digits of a float32 number decide what the script prints, "
    "writes or does next; autoddp cannot change this, but the script can compare with a tolerance"
)


def cause_of(findings: Findings, nproc: int) -> str:
    """Return the first cause that applies to the differences of ranks from one process."""
    first, all_ranks = findings.differences[0], set(range(nproc))
    ranks = {each.rank for each in findings.differences if each.step == first.step}
    if first.step is not None and ranks != all_ranks:
        return (
            f"the ranks do not agree with each other, first at {first.described()}; compute "
            "nothing from autoddp.rank(), or from values that differ between ranks (a host name)"
        )
    for ending in (each for each in findings.differences if each.aspect == ENDING):
        return f"the ranks end with exit code {ending.got}, one process with {ending.want}"
    return UNKNOWN


def not_reproducible(findings: Findings) -> str:
    """Return a cause if two runs of one process differ in generators, or in their first losses."""
    for each in findings.differences:
        early = each.aspect == LOSS and (each.step or EARLY) < EARLY and each.size > LARGE
        if each.aspect == GENERATOR or early:
            return (
                f"two runs of one process differ, too, first at {each.described()}; seed all "
                "generators with fixed numbers"
            )
    return ""
