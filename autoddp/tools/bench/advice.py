"""Say what the figures advise: each rule speaks of the row where it weighs most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoddp.tools.bench.figures import Row
from autoddp.tools.bench.variants import GLOBAL, PLAIN
from autoddp.tools.record.phases import GATHERING, GRADIENTS, LOADING

MUCH = 0.3  # part of a step, for loading
SOME = 0.2  # part of a step, for what ranks say to each other
FEW = 8  # rows of a batch for each rank
SHORT = 0.005  # seconds of a step
NOISE = 0.1  # part by which rounds may differ
SAME = 0.05  # part by which equal losses may differ: chaotic training drifts apart by rounding


@dataclass(frozen=True)
class RowEvidence:
    """The figures of a row by which the rules judge it."""

    title: str
    kind: str
    ranks: int
    batch: float
    loading: float
    gathering: float
    gradients: float
    speed_up: float
    spread: float
    loss: float | None
    plain_loss: float | None
    plain_median: float  # seconds of a step
    threads: int
    cores: int
    gpus: int

    @property
    def worse(self) -> float:
        """Return by what part of one process's loss the loss of this row is higher."""
        if self.loss is None or not self.plain_loss:
            return 0.0
        return (self.loss - self.plain_loss) / abs(self.plain_loss)

    @property
    def shared(self) -> bool:
        """Return whether several ranks share the work."""
        return self.ranks > 1


@dataclass(frozen=True)
class Rule:
    """A piece of advice, and how much it weighs for a row: nothing where it does not apply.

    Of several rows the heaviest is spoken of.
    """

    weight: Callable[[RowEvidence], float]
    words: str


def above(value: float, least: float) -> float:
    """Return the value if it is at least `least`, else 0."""
    return value if value >= least else 0.0


RULES = (
    Rule(
        lambda c: c.shared * above(c.loading, MUCH),
        "data loading takes {c.loading:.0%} of the step ({c.title}): more workers help, more "
        "ranks do not",
    ),
    Rule(
        lambda c: (c.kind == PLAIN) * above(c.loading, MUCH),
        "data loading takes {c.loading:.0%} of the step ({c.title}): more workers help, "
        "and ranks share it",
    ),
    Rule(
        lambda c: c.shared * float(0 < c.batch < c.ranks) * c.ranks,
        "the global batch of {c.batch:g} has fewer rows than ranks ({c.title}): every rank "
        "computes all of it; a larger batch, or fewer ranks, would share it",
    ),
    Rule(
        lambda c: (
            float(c.ranks <= c.batch < FEW * c.ranks and c.shared and c.speed_up < 1) * c.ranks
        ),
        "a batch of {c.batch:g} rows leaves few of them to each rank ({c.title}): a larger "
        "batch gains more",
    ),
    Rule(
        lambda c: above(c.gathering, SOME),
        "gathering takes {c.gathering:.0%} of the step ({c.title}): see what gathers, and in which "
        "line, with autoddp run --report FILE",
    ),
    Rule(
        lambda c: above(c.gradients, SOME),
        "waiting for gradients takes {c.gradients:.0%} of the step ({c.title}): larger batches, or "
        "several of them for each optimizer step, wait less often",
    ),
    Rule(
        lambda c: float(not c.gpus and c.ranks > c.cores) * c.ranks,
        "{c.ranks} ranks share {c.cores} cores: no more ranks than cores can compute at once",
    ),
    Rule(
        lambda c: float(0 < c.gpus < c.ranks) * c.ranks,
        "{c.ranks} ranks share fewer GPUs ({c.gpus}): that is for tests, and does not speed up",
    ),
    Rule(
        lambda c: float(
            c.shared and c.kind == GLOBAL and c.speed_up < 1 and c.plain_median < SHORT
        ),
        "a step of one process takes {c.plain_median:.2g} s: a model so small is mostly Python, "
        "which ranks do not share",
    ),
    Rule(
        lambda c: float(c.kind == PLAIN and not c.gpus and c.threads > 1),
        "one process computes by {c.threads} threads already: on CPUs ranks gain what these "
        "leave idle",
    ),
    Rule(
        lambda c: (c.kind == GLOBAL and c.shared) * above(abs(c.worse), SAME),
        "the loss of {c.title} is not that of one process ({c.loss:.4g}, {c.plain_loss:.4g}): "
        "autoddp verify tells why (data sets that draw, rounding)",
    ),
    Rule(
        lambda c: above(c.spread, NOISE),
        "rounds of one row differ by ±{c.spread:.0%} ({c.title}): something else runs on this "
        "machine; more --rounds or --steps tell more",
    ),
)
NOTHING = "no part of a step stands out"


def advice(rows: Sequence[Row], cores: int, gpus: int) -> list[str]:
    """Return a sentence for each rule that applies.

    Args:
        rows: The rows of the tables, of which the first is one process.
        cores: The number of cores of this machine that this process may use.
        gpus: The number of GPUs.
    """
    found = [case_of(row, rows[0], cores, gpus) for row in rows if row.rounds]
    return sentences(found)


def case_of(row: Row, plain: Row, cores: int, gpus: int) -> RowEvidence:
    """Gather what the rules look at in a row."""
    return RowEvidence(
        title=row.way.title,
        kind=row.way.kind,
        ranks=row.way.devices,
        batch=row.of("batch"),
        loading=row.of(LOADING),
        gathering=row.of(GATHERING),
        gradients=row.of(GRADIENTS),
        speed_up=row.speed_up(plain) or 0.0,
        spread=row.spread,
        loss=row.loss,
        plain_loss=plain.loss,
        plain_median=plain.of("median"),
        threads=row.rounds[0].threads,
        cores=cores * row.way.nodes,
        gpus=gpus * row.way.nodes,
    )


def sentences(cases: Sequence[RowEvidence]) -> list[str]:
    """Return a sentence on the fastest row, and those of all rules that apply."""
    ranks = [case for case in cases if case.shared]
    found = [fastest(ranks)] if ranks and len(cases) > 1 else []
    for rule in RULES:
        heaviest = max(cases, key=rule.weight)
        if rule.weight(heaviest):
            found.append(rule.words.format(c=heaviest))
    return found or [NOTHING]


def fastest(ranks: Sequence[RowEvidence]) -> str:
    """Name the fastest row with the numbers of one process, and the fastest of all."""
    ordered = sorted(ranks, key=lambda case: -case.speed_up)
    best = ordered[0]
    same = next((c for c in ordered if c.kind == GLOBAL and c.speed_up > 1), None)
    if same is None:
        words = "no ranks are faster than one process with its numbers"
    else:
        words = (
            f"fastest with the numbers of one process: {same.title}, "
            f"{same.speed_up:.2f} times its speed"
        )
    if best is not same and best.speed_up > 1:
        words += f"; of all: {best.title}, {best.speed_up:.2f}"
    return words
