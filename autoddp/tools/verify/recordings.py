"""Compare two recordings that `autoddp run --record` made, wherever their ranks ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoddp.errors import BadInput
from autoddp.tools import plots
from autoddp.tools.record.recording import Recording, read
from autoddp.tools.verify.causes import Cause, causes
from autoddp.tools.verify.findings import ENDING, OTHER, Difference
from autoddp.tools.verify.steps import compare_ranks, compare_runs
from autoddp.tools.verify.verdict import DIFFERENT, Conclusion, VerifyOptions

UNKNOWN = Cause(
    "unknown",
    "not to be told from two recordings: it may be rounding",
    "autoddp verify SCRIPT runs the script itself, and tells rounding from errors",
)


def run(folders: Sequence[str], wanted: VerifyOptions, quiet: bool) -> int:
    """Compare two recordings, and tell the result: 0 if they are equal, 1 if not.

    Raises:
        BadInput: There are not two of them, or there is nothing in them to compare.
    """
    if len(folders) != 2:
        raise BadInput(
            f"--recordings is given {len(folders)} folders; it compares 2: autoddp verify "
            "--recordings A B"
        )
    one, other = (read(folder) for folder in folders)
    for found in (one, other):
        if any("gradients" not in step for steps in found.steps.values() for step in steps):
            raise BadInput(f"{found.name} holds times alone; record it without --record-kind times")
    if wanted.plot is not None:
        plots.losses(wanted.plot, one, other)
    return conclusion(one, other, wanted.steps).finish(wanted, quiet)


def conclusion(one: Recording, other: Recording, steps: int | None) -> Conclusion:
    """Compare rank 0 of two recordings, and in each the ranks with each other."""
    verdict = Conclusion(other.about["script"], len(other.steps), names=(one.name, other.name))
    verdict.seconds = {each.name: each.seconds for each in (one, other)}
    verdict.findings = findings = compare_runs(one, other, steps)
    if steps is None:
        codes = str(one.code), str(other.code)
        size = 0.0 if one.code == other.code else OTHER
        findings.take(Difference(ENDING, "", *codes, size), 0)
    for each in (one, other):
        among = compare_ranks({0: []} if each.about["apart"] else each.steps)
        if verdict.among.equal:
            verdict.among = among
        if not among.equal:
            verdict.notes.append(f"the ranks of {each.name} do not agree with each other")
    verdict.notes += notes(one, other)
    if findings.equal and verdict.among.equal:
        verdict.why = f"{other.name} has the numbers of {one.name}; the largest difference is "
        verdict.why += f"{findings.largest:.1e}"
        return verdict
    verdict.code, verdict.why = DIFFERENT, f"{other.name} has not the numbers of {one.name}"
    verdict.cause = next(causes(findings, verdict.among, other, other.options), UNKNOWN)
    return verdict


def notes(one: Recording, other: Recording) -> Iterator[str]:
    """Yield what a reader needs to know of the two."""
    ran = [" ".join([each.about["script"], *each.about["arguments"]]) for each in (one, other)]
    if ran[0] != ran[1]:
        yield f"{one.name} is of {ran[0]}, {other.name} of {ran[1]}"
    for each in (one, other):
        yield from each.lacks()
        if each.about["apart"]:
            yield f"the ranks of {each.name} have numbers of their own: rank 0's are compared"
    yield "what a script prints and writes is in no recording"
