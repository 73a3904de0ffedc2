"""The reasons why ranks differ from one process, where they can be told, and what mends them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autoddp.options import Options
from autoddp.tools.record.recording import Recording
from autoddp.tools.verify.findings import GENERATOR, LOSS, OTHER, STEPS, Findings

LARGE = 1e-3  # two runs of one process whose first losses differ by more do not repeat themselves
LAYOUT = "reshape() instead of view(), or --disable modules,loaders; and please report it"
DECIDED = (
    "let nothing that is computed depend on autoddp.rank(), or on what is not the same on every "
    "rank (a host name, a file or a number of its own)"
)
ERROR = re.compile(r"^[\w.]*(Error|Disagreement|Exception|RankEnded|LostGradient|Interrupt)\b.*:")

HANGS, MISSING = (
    re.compile(r"\[autoddp\] the job hangs: "),
    re.compile(r"\[autoddp\] (?=rank \d+ .* is at )"),
)


@dataclass(frozen=True)
class Cause:
    """A cause of differences: one sentence, and what to do about it."""

    name: str
    what: str
    mend: str


@dataclass(frozen=True)
class CauseEvidence:
    """The evidence on a difference: all that the runs have told.

    Attributes:
        findings: One process against the ranks, without what is excused.
        among: The ranks against rank 0.
        control: One process against itself, summing in another order.
        ranks: The remains of the ranks' run.
        options: The options of the ranks' run.
        wide: The ranks against one process in float64, if asked for.
    """

    findings: Findings
    among: Findings
    control: Findings
    ranks: Recording
    options: Options
    wide: Findings | None = None


def cause_of(case: CauseEvidence) -> Cause | None:
    """Return the first cause that applies, as far as these runs tell, None if none does."""
    rules = (
        decides,
        unrepeated,
        stops,
        augments,
        own_draws,
        own_share,
        own_statistics,
        left_out,
        tipped,
    )
    return next((found for rule in rules for found in rule(case)), None)


def unknown(runs: Iterable[tuple[str, ...]]) -> Cause:
    """Say that no cause was found, and what was left out in vain."""
    left_out = "; ".join(",".join(names) for names in runs)
    return Cause(
        "unknown",
        "not known" + (f": without {left_out} the ranks differ, too" if left_out else ""),
        "autoddp patches lists what --disable leaves out; a bug report with --json is welcome",
    )


def unrepeated(case: CauseEvidence) -> Iterator[Cause]:
    """Yield a cause if one process alone gives other numbers each time."""
    yield from repeats(case.control)


def repeats(control: Findings) -> Iterator[Cause]:
    """Yield a cause if two runs of one process differ in generators, or much in first losses."""
    for found in control.differences:
        own = found.aspect == GENERATOR or (found.aspect == LOSS and (found.step or 9) < 3)
        if own and found.size > LARGE:
            yield Cause(
                "not repeatable",
                f"two runs of one process differ, too: {found.described()}",
                "seed all generators with fixed numbers: what is drawn from the clock or the "
                "system is another number each time",
            )
            return


def decides(case: CauseEvidence) -> Iterator[Cause]:
    """Yield a cause if the script does one thing on one rank, and another elsewhere."""
    ended = case.ranks.code != 0  # then it is chance how far each rank came
    first = next((d for d in case.among.differences if not (ended and d.aspect == STEPS)), None)
    if first is None:
        return
    where = f"first at {first.described()}"
    clocks = "clocks" in case.options.disable
    yield Cause(
        "a decision of each rank",
        f"the ranks do not agree with each other: {where}",
        "leave --disable clocks out: ranks decide by their own clocks" if clocks else DECIDED,
    )


def stops(case: CauseEvidence) -> Iterator[Cause]:
    """Yield a cause if the ranks ended in an error that one process does not have."""
    if case.ranks.code == 0 or not case.findings.of("ending"):
        return
    lines = case.ranks.err.rstrip().splitlines()
    hangs = next((line for line in lines if HANGS.match(line)), None)
    if hangs is not None:
        missing = [MISSING.sub("", line) for line in lines if MISSING.match(line)]
        said = "; ".join([HANGS.sub("", hangs).partition(";")[0], *missing])
        yield Cause("a hang", f"the ranks hang: {said}", DECIDED)
        return
    error = next(
        (line for line in reversed(lines) if ERROR.match(line)), lines[-1] if lines else "?"
    )
    part = any(word in error for word in ("Disagreement", "RankEnded", "parted"))
    if "size is not compatible with input tensor's size and stride" in error:
        yield Cause("layout", f"a gather changed how a tensor lies in memory: {error}", LAYOUT)
        return
    yield Cause(
        "a decision of each rank" if part else "an error",
        f"the ranks end in an error: {error}",
        DECIDED if part else "what the error says; --view local shards no batch",
    )


def augments(case: CauseEvidence) -> Iterator[Cause]:
    """Yield a cause if a data set draws, and each rank fetches its rows of it alone."""
    drawn = [
        d for d in case.ranks.decisions if "its data set draws random numbers: each" in d["what"]
    ]
    if drawn and case.findings.steps:
        yield Cause(
            "augmentation",
            f"{drawn[0]['where']}: the data set draws random numbers, and each rank draws its own "
            "for its rows: statistically the same, not the same numbers",
            "--loading auto",
        )


def own_draws(case: CauseEvidence) -> Iterator[Cause]:
    """Yield a cause if draws inside a model are each rank's own."""
    drawn = [d for d in case.ranks.decisions if d["kind"] == "draws"]
    if case.findings.steps and (drawn or case.options.draws == "own"):
        what = drawn[0]["what"] if drawn else "--draws own: each rank draws its own rows"
        yield Cause("draws", f"random draws inside a model: {what}", "--draws whole")


def own_share(case: CauseEvidence) -> Iterator[Cause]:
    """Yield a cause if each rank sees its share of a batch alone."""
    if case.options.view == "local":
        yield Cause("local view", "--view local: each rank has its own share", "--view global")


def own_statistics(case: CauseEvidence) -> Iterator[Cause]:
    """Yield a cause if BatchNorm is over the rows of each rank."""
    if case.options.batchnorm == "local":
        yield Cause(
            "batchnorm",
            "--batchnorm local: each rank normalizes by its own rows",
            "--batchnorm exact",
        )


def left_out(case: CauseEvidence) -> Iterator[Cause]:
    """Yield a cause if the user has turned features off."""
    if case.options.disable:
        names = ",".join(case.options.disable)
        yield Cause(
            "a feature is left out",
            f"--disable {names}: autoddp patches says what is so without",
            f"leave --disable {names} out",
        )


def tipped(case: CauseEvidence) -> Iterator[Cause]:
    """Yield a cause if float64 is equal: rounding made the script go another way."""
    if case.wide is not None and case.wide.equal:
        yield Cause(
            "rounding",
            "in float64 all is equal: the last digits of a float32 number tip a decision of "
            "the script",
            "nothing of autoddp: compare numbers with a margin, or decide by fewer digits",
        )


def rounding(findings: Findings) -> bool:
    """Return whether all that differs is numbers, so that rounding may be why."""
    return all(found.size != OTHER for found in findings.differences)
