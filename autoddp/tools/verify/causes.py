"""The reasons why ranks differ from one process, where they can be told, and what mends them."""

from __future__ import annotations

from dataclasses import dataclass

from autoddp.options import Options
from autoddp.tools.record.recording import GENERATOR, LOSS
from autoddp.tools.verify.findings import ENDING, Findings

LARGE = 1e-3  # two runs of one process whose first losses differ by more do not repeat themselves
EARLY = 3  # steps within which such a script shows it
# Options that may give up some of one process's numbers, and values that give up none.
LOOSER = ("batchnorm", "loading", "draws", "disable", "rowwise")
EXACT = ("exact", "auto", "each", "whole", ())


@dataclass(frozen=True)
class Cause:
    """A cause of differences: one sentence, and what to do about it."""

    name: str
    what: str
    mend: str


UNKNOWN = Cause(
    "unknown",
    "not known: it may be a fault of autoddp",
    "autoddp patches lists what --disable leaves out; a bug report with --json is welcome",
)
TIPPED = Cause(
    "rounding",
    "in float64 all is equal: the last digits of a float32 number tip a decision of the script",
    "nothing of autoddp: compare numbers with a margin, or decide by fewer digits",
)
MARKED = Cause(
    "rowwise",
    "the script marks something as rowwise, which is computed on each rank's rows: that is wrong "
    "where it mixes rows",
    "verify once more without the mark",
)


def cause_of(findings: Findings, options: Options, source: str) -> Cause:
    """Return the first cause that applies to the differences of ranks from one process."""
    first, all_ranks = findings.differences[0], set(range(options.nproc or 1))
    for ended in (found for found in findings.differences if found.aspect == ENDING):
        what = f"the ranks end with exit code {ended.got}, one process with {ended.want}"
        return Cause("an error", what, "see the error")
    ranks = {found.rank for found in findings.differences if found.step == first.step}
    if first.step is not None and ranks != all_ranks:
        return Cause(
            "a decision of each rank",
            f"the ranks do not agree with each other: first at {first.described()}",
            "let nothing that is computed depend on autoddp.rank(), or on what is not the same on "
            "every rank (a host name, a file or a number of its own)",
        )
    for name in LOOSER:
        value = getattr(options, name)
        if value not in EXACT:
            text = value if isinstance(value, str) else ",".join(value)
            what = f"--{name} {text}, which may give up some of one process's numbers"
            return Cause("an option", what, "verify once more without it")
    return MARKED if "rowwise" in source else UNKNOWN


def unrepeated(again: Findings) -> Cause | None:
    """Return a cause if two runs of one process differ in generators, or much in first losses."""
    for found in again.differences:
        early = found.aspect == LOSS and (found.step or EARLY) < EARLY and found.size > LARGE
        if found.aspect == GENERATOR or early:
            return Cause(
                "not repeatable",
                f"two runs of one process differ, too: {found.described()}",
                "seed all generators with fixed numbers",
            )
    return None
