"""Compare two recordings that `autoddp run --record` made, wherever their ranks ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoddp.errors import BadInput
from autoddp.tools.record.recording import Recording, read
from autoddp.tools.rehearse import picture
from autoddp.tools.verify import plot
from autoddp.tools.verify.causes import Cause, CauseEvidence, cause_of
from autoddp.tools.verify.findings import ENDING, OTHER, Difference, Findings
from autoddp.tools.verify.show import finish
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
    if wanted.plot is not None:
        picture.check(wanted.plot)
    one, other = (with_numbers(read(folder)) for folder in folders)
    if wanted.plot is not None:
        plot.draw(wanted.plot, one, other)
    return finish(conclusion(one, other, wanted.steps), wanted, quiet)


def with_numbers(found: Recording) -> Recording:
    """Return a recording that has numbers to compare.

    Raises:
        BadInput: It has none.
    """
    if any("gradients" not in step for steps in found.steps.values() for step in steps):
        raise BadInput(f"{found.name} holds times alone; record it without --record-kind times")
    return found


def conclusion(one: Recording, other: Recording, steps: int | None) -> Conclusion:
    """Compare rank 0 of two recordings, and in each the ranks with each other."""
    from autoddp.tools.verify.command import compare_steps_of
    from autoddp.tools.verify.steps import compare_ranks

    verdict = Conclusion(other.about["script"], len(other.steps), names=(one.name, other.name))
    verdict.seconds = {each.name: each.seconds for each in (one, other)}
    verdict.findings = findings = compare_steps_of(one, other, steps)
    findings.add(ENDING)
    if steps is None and one.code != other.code:
        findings.differs(Difference(ENDING, "exit code", _code(one), _code(other), OTHER))
    for each in (one, other):
        among = Findings() if each.about["apart"] else compare_ranks(each.steps)
        if not among.equal or (verdict.among.equal and each is other):
            verdict.among = among
        if not among.equal:
            verdict.notes.append(f"the ranks of {each.name} do not agree with each other")
    verdict.notes += notes(one, other)
    if findings.equal and verdict.among.equal:
        a, b = verdict.names
        verdict.why = f"{b} has the numbers of {a}; the largest difference is "
        verdict.why += f"{findings.largest:.1e}"
        return verdict
    verdict.code, verdict.why = DIFFERENT, f"{other.name} has not the numbers of {one.name}"
    case = CauseEvidence(findings, verdict.among, Findings(), other, other.options)
    verdict.cause = cause_of(case) or UNKNOWN
    return verdict


def _code(found: Recording) -> str:
    return "none: it has not ended" if found.code is None else str(found.code)


def notes(one: Recording, other: Recording) -> Iterator[str]:
    """Yield what a reader needs to know of the two."""
    ran = [" ".join([each.about["script"], *each.about["arguments"]]) for each in (one, other)]
    if ran[0] != ran[1]:
        yield f"{one.name} is of {ran[0]}, {other.name} of {ran[1]}"
    for each in (one, other):
        ranks = each.about["ranks"]
        if each.missing:
            yield (
                f"{each.name} has {len(each.steps)} of {ranks} ranks: "
                f"{', '.join(map(str, each.missing))} wrote on other nodes; copy their files to it "
                "to compare them, too"
            )
        if each.code is None:
            yield f"{each.name} has not ended: what it has so far is compared"
        if each.about["apart"]:
            yield f"the ranks of {each.name} have numbers of their own: rank 0's are compared"
    if not one.steps.get(0):
        yield "no optimizer step was seen: losses are all that was compared"
    yield "what a script prints and writes is in no recording"
