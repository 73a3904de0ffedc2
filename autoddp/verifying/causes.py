"""Why ranks differ from one process, where it can be told, and the option that mends it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autoddp.options import Options
from autoddp.verifying.findings import GENERATOR, LOSS, OTHER, STEPS, Difference, Findings
from autoddp.verifying.runs import Left

LARGE = 1e-3  # two runs of one process whose first losses differ by more do not repeat themselves
TAIL = 12  # lines of a failure that are shown
ERROR = re.compile(r"^[\w.]*(Error|Disagreement|Exception|RankEnded|LostGradient|Interrupt)\b.*:")


@dataclass(frozen=True)
class Cause:
    """One sentence, and what to do about it."""

    name: str
    what: str
    mend: str


@dataclass(frozen=True)
class Case:
    """All that is known of a difference.

    Attributes:
        findings: One process against the ranks, without what is excused.
        among: The ranks against rank 0.
        control: One process against itself, summing in another order.
        ranks: What the ranks left.
        options: The ranks'.
        without: Whether the ranks give one process's numbers if some features are left out.
    """

    findings: Findings
    among: Findings
    control: Findings
    ranks: Left
    options: Options
    without: Callable[[tuple[str, ...]], bool]


def evident(case: Case) -> Cause | None:
    """A cause that the two runs show by themselves: no other run could say more."""
    rules = (decides, stops, augments, own_draws)
    return next((found for rule in rules for found in rule(case)), None)


def cause_of(case: Case) -> Cause:
    """The first that is so."""
    rules = (repeats, own_statistics, left_out, by_trial)
    return evident(case) or next((found for rule in rules for found in rule(case)), UNKNOWN)


UNKNOWN = Cause(
    "unknown",
    "the cause is not known",
    "--disable, one feature after the other, tells which part of autoddp it is (see autoddp patches); "
    "a bug report with --json is welcome",
)


def repeats(case: Case) -> Iterator[Cause]:
    """One process alone gives other numbers each time."""
    for found in case.control.differences:
        own = found.aspect == GENERATOR or (found.aspect == LOSS and (found.step or 9) < 3)
        if own and found.size > LARGE:
            yield Cause(
                "not repeatable",
                f"two runs of one process differ, too: {found.told()}",
                "seed all generators with fixed numbers: what is drawn from the clock or the system is "
                "another number each time",
            )
            return


def decides(case: Case) -> Iterator[Cause]:
    """The script does one thing on one rank, and another elsewhere."""
    ended = case.ranks.code != 0  # then who came how far is chance
    first = next((d for d in case.among.differences if not (ended and d.aspect == STEPS)), None)
    if first is None:
        return
    where = f"first at {first.told()}"
    clocks = "clocks" in case.options.disable
    yield Cause(
        "a decision of each rank",
        f"the ranks do not agree with each other: {where}",
        "leave --disable clocks out: ranks decide by their own clocks"
        if clocks
        else "let nothing that is computed depend on autoddp.rank(), or on what is not the same on every "
        "rank (a file, a host name, a number of its own)",
    )


def stops(case: Case) -> Iterator[Cause]:
    """The ranks ended in an error that one process does not have."""
    if case.ranks.code == 0 or not case.findings.of("ending"):
        return
    lines = case.ranks.err.rstrip().splitlines()
    error = next((line for line in reversed(lines) if ERROR.match(line)), lines[-1] if lines else "?")
    part = "Disagreement" in error or "RankEnded" in error or "parted" in error
    yield Cause(
        "a decision of each rank" if part else "an error",
        f"the ranks end in an error: {error}",
        "what is done once for all must be called by all ranks, in one order"
        if part
        else "what the error says; --view local has no batches by rows",
    )


def augments(case: Case) -> Iterator[Cause]:
    """A data set draws, and each rank fetches its rows of it alone."""
    drawn = [d for d in case.ranks.decisions if "its data set draws random numbers: each" in d["what"]]
    if drawn and case.findings.steps:
        yield Cause(
            "augmentation",
            f"{drawn[0]['where']}: the data set draws random numbers, and each rank draws its own for its "
            "rows: statistically the same, not the same numbers",
            "--loading whole",
        )


def own_draws(case: Case) -> Iterator[Cause]:
    """Draws inside a model that are each rank's own."""
    drawn = [d for d in case.ranks.decisions if d["kind"] == "draws"]
    if case.findings.steps and (drawn or case.options.draws == "own"):
        what = drawn[0]["what"] if drawn else "--draws own: each rank draws its own rows"
        yield Cause("draws", f"random draws inside a model: {what}", "--draws whole")


def own_statistics(case: Case) -> Iterator[Cause]:
    """BatchNorm over the rows of each rank."""
    if case.options.batchnorm == "local":
        yield Cause(
            "batchnorm", "--batchnorm local: each rank normalizes by its own rows", "--batchnorm exact"
        )


def left_out(case: Case) -> Iterator[Cause]:
    """What the user has turned off."""
    if case.options.disable:
        names = ",".join(case.options.disable)
        yield Cause(
            "a feature is left out",
            f"--disable {names}: autoddp patches says what is so without",
            f"leave --disable {names} out",
        )


def by_trial(case: Case) -> Iterator[Cause]:
    """The ranks run again with less of autoddp."""
    split = ", ".join(d["where"] for d in case.ranks.decisions if d["kind"] == "split") or "none"
    if case.without(("modules",)):
        yield Cause(
            "modules",
            "with --disable modules the ranks give one process's numbers: a module that was run by rows "
            f"is not row-wise, or its gradients are not put together rightly (split: {split})",
            "--disable modules, which is exact and no faster; and please report it",
        )
    elif case.without(("modules", "loaders")):
        yield Cause(
            "loaders",
            "with --disable loaders,modules the ranks give one process's numbers: fetching or computing by "
            "rows is not exact for these batches",
            "--disable loaders,modules, which is exact and no faster; and please report it",
        )


def rounding(findings: Findings) -> bool:
    """Whether all that differs are numbers, so that rounding may be why."""
    return all(found.size != OTHER for found in findings.differences)


def tail(text: str) -> list[str]:
    """The end of what went wrong."""
    return text.rstrip().splitlines()[-TAIL:]


def shown(differences: list[Difference], most: int = 4) -> list[str]:
    """The first divergence: all of its step, up to some."""
    first = differences[0]
    together = [d for d in differences if (d.step, d.rank) == (first.step, first.rank)]
    return [found.told() for found in together[:most]]
