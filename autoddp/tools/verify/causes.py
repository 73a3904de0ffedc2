"""The causes of differences between ranks and one process, as far as known, and what helps."""

from __future__ import annotations

from autoddp.tools.record.recording import GENERATOR, LOSS
from autoddp.tools.verify.findings import ENDING, Findings

LARGE = 1e-3  # two runs of one process whose first losses differ by more do not repeat themselves
EARLY = 3  # steps within which such a script shows it

UNKNOWN = (
    "not known; without --batchnorm local, --loading rows, --draws own, --disable, --rowwise and "
    "marks with autoddp.rowwise it is a fault of autoddp: please report it with the file of --json"
)
TIPPED = (
    "in float64 all is equal: the last digits of a float32 number decide what the script prints, "
    "writes or does next; autoddp cannot change that, the script can compare with a margin"
)


def cause_of(findings: Findings, nproc: int) -> str:
    """Return the first cause that applies to the differences of ranks from one process."""
    first, all_ranks = findings.differences[0], set(range(nproc))
    ranks = {found.rank for found in findings.differences if found.step == first.step}
    if first.step is not None and ranks != all_ranks:
        return (
            f"the ranks do not agree with each other, first at {first.described()}; compute "
            "nothing from autoddp.rank(), or from what differs between ranks (a host name)"
        )
    for ended in (found for found in findings.differences if found.aspect == ENDING):
        return f"the ranks end with exit code {ended.got}, one process ends with {ended.want}"
    return UNKNOWN


def unrepeated(again: Findings) -> str:
    """Return a cause if two runs of one process differ in generators, or in their first losses."""
    for found in again.differences:
        early = found.aspect == LOSS and (found.step or EARLY) < EARLY and found.size > LARGE
        if found.aspect == GENERATOR or early:
            return (
                f"two runs of one process differ, too, first at {found.described()}; seed all "
                "generators with fixed numbers"
            )
    return ""
