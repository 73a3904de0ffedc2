"""Figures from the records of a run, and from the rounds of a row."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from autoddp.tools.bench.variants import Way
from autoddp.tools.record.phases import PARTS
from autoddp.tools.record.recording import Recording

COMPUTING = "computing"
LEAST = 2  # steps: the first one is not measured
WARM_UP = 5  # steps at most: decisions, the first allocations, DDP's buckets, made anew once
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Figures:
    """The figures of one run: times are rank 0's, in seconds; memory is each rank's, in bytes."""

    steps: int
    warm_up: int  # of the steps, which are in no time below
    samples: int  # rows of batches that were trained on, in all steps
    batch: float  # rows of a step, its median
    rate: float  # samples a second, over all measured steps
    median: float
    p95: float
    shares: dict[str, float]
    memory: list[int]
    on_gpu: bool
    threads: int
    # the mean of the last tenth of the losses, over ranks where each has its own
    loss: float | None
    losses: list[float]
    printed: str  # the last line
    metric: float | None  # its last number
    seconds: float  # of the run as a whole
    step_seconds: list[float] = field(default_factory=list)


def figures(left: Recording, way: Way, by_hand: int | None) -> Figures:
    """Compute the figures of a run of at least two steps.

    Args:
        left: The remains of the run.
        way: The way in which it was run.
        by_hand: Rows of a batch, where no loader makes them.
    """
    mine = left.times[0]
    warm = warm_up(len(mine))
    rows = rows_of_steps(left, way.local, by_hand)
    measured = mine[warm:]
    times = [step["seconds"] for step in measured]
    total = sum(times)
    shares = {part: sum(step[part] for step in measured) / total for part in PARTS}
    ends = [left.ends.get(rank, {}) for rank in range(way.ranks)]
    losses = [end["curve"] for end in ends if end.get("curve")][: None if way.local else 1]
    together = [statistics.fmean(some) for some in zip(*losses, strict=False)]
    lines = [line.rstrip() for line in left.out.replace("\r", "\n").splitlines() if line.strip()]
    printed = lines[-1] if lines else ""
    gpu = any(end.get("GPU memory") for end in ends)
    return Figures(
        steps=len(mine),
        warm_up=warm,
        samples=sum(rows),
        batch=statistics.median(rows),
        rate=sum(rows[warm:]) / total,
        median=statistics.median(times),
        p95=percentile(times, 0.95),
        shares=shares | {COMPUTING: 1 - sum(shares.values())},
        memory=[end.get("GPU memory" if gpu else "memory") or 0 for end in ends],
        on_gpu=gpu,
        threads=ends[0].get("threads", 1),
        loss=last_tenth(together),
        losses=together,
        printed=printed,
        metric=last_number(printed),
        seconds=left.seconds,
        step_seconds=times,
    )


def rows_of_steps(left: Recording, local: bool, by_hand: int | None) -> list[int]:
    """Count the rows of each step: all ranks' shares in the local view, else what rank 0 sees.

    A batch of fewer rows than ranks, which all ranks get in the local view, counts for each.
    """
    times = left.times
    ranks = [times[rank] for rank in sorted(times)] if local else [times[0]]
    rows = [sum(step["rows"] for step in steps) for steps in zip(*ranks, strict=False)]
    if not any(rows) and by_hand:
        rows = [by_hand * step["backwards"] for step in times[0]]
    return rows


def warm_up(steps: int) -> int:
    """Return how many steps are not measured: always the first, as it is where all begins."""
    return max(1, min(WARM_UP, steps // 4))


def percentile(values: list[float], part: float) -> float:
    """Return the smallest value that `part` of the values are not above."""
    return sorted(values)[math.ceil(part * len(values)) - 1]


def last_tenth(values: list[float]) -> float | None:
    """Return the mean of the last tenth, of few values the last one, None if there are none."""
    return statistics.fmean(values[-max(1, len(values) // 10) :]) if values else None


def last_number(line: str) -> float | None:
    """Return the last number in a line, None if there is none."""
    found = NUMBER.findall(line)
    return float(found[-1]) if found else None


@dataclass
class Row:
    """A way to run the script, with its figures in each round, or why it has none."""

    way: Way
    rounds: list[Figures] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # the end of its traceback

    def of(self, name: str) -> float:
        """Return the median over rounds of a figure or a share."""
        return statistics.median(
            run.shares[name] if name in run.shares else getattr(run, name) for run in self.rounds
        )

    @property
    def spread(self) -> float:
        """Return how far rounds lie above or below their middle, as a part of it."""
        rates = [run.rate for run in self.rounds]
        return (max(rates) - min(rates)) / (max(rates) + min(rates)) if max(rates) else 0.0

    @property
    def memory(self) -> int:
        """Return the most bytes that a rank had in any round."""
        return max(max(run.memory) for run in self.rounds)

    @property
    def loss(self) -> float | None:
        """Return the median of the rounds' final losses, None if there are none."""
        found = [run.loss for run in self.rounds if run.loss is not None]
        return statistics.median(found) if found else None

    def speed_up(self, plain: Row) -> float | None:
        """Return the median over rounds, each against one process in the same round."""
        pairs = zip(self.rounds, plain.rounds, strict=False)
        found = [mine.rate / theirs.rate for mine, theirs in pairs if theirs.rate]
        return statistics.median(found) if found else None

    def data(self, plain: Row) -> dict[str, Any]:
        """Return all of the row, for JSON."""
        about = {
            "row": self.way.label,
            "ranks": self.way.ranks,
            "nodes": self.way.nodes,
            "options": asdict(self.way.options),
        }
        if not self.rounds:
            return about | {"failed": self.failed}
        names = ("steps", "samples", "batch", "rate", "median", "p95")
        speed_up = self.speed_up(plain)
        return about | {
            **{name: self.of(name) for name in names},
            "shares": {name: self.of(name) for name in self.rounds[0].shares},
            "spread": self.spread,
            "memory": self.memory,
            "loss": self.loss,
            "printed": self.rounds[-1].printed,
            "metric": self.rounds[-1].metric,
            "speed-up": speed_up,
            "efficiency": None if speed_up is None else speed_up / self.way.devices,
            "failed": self.failed,
            "rounds": [asdict(run) for run in self.rounds],
        }
