"""Figures from the records of a run, and from the rounds of a row."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from autoddp.tools.bench.ways import Way
from autoddp.tools.record.recording import PARTS, Recording

COMPUTING = "computing"
LEAST = 2  # steps: the first one is not measured
WARM_UP = 5  # steps at most: decisions, the first allocations, DDP's buckets, made anew once
Figures = dict[str, Any]


def figures(left: Recording, way: Way) -> Figures:
    """Compute the figures of a run of at least two steps.

    Times are rank 0's, in seconds; memory is each rank's, in bytes.
    """
    mine = left.steps[0]
    # in the local view rank 0 sees its share of a batch alone
    ranks = left.steps.values() if way.options.view == "local" else [mine]
    rows = [sum(step["rows"] for step in steps) for steps in zip(*ranks, strict=False)]
    if not any(rows):  # no batch was seen at all: each backward is of a sample
        rows = [step["backwards"] for step in mine]
    warm = max(1, min(WARM_UP, len(mine) // 4))
    measured = mine[warm:]
    total = sum(step["seconds"] for step in measured)
    shares = {part: sum(step[part] for step in measured) / total for part in PARTS}
    ends = [left.ends.get(rank, {}) for rank in range(way.ranks)]
    gpu = any(end.get("GPU memory") for end in ends)
    return {
        "steps": len(mine),
        "warm-up": warm,  # steps, which are in no time below
        "samples": sum(rows),  # of batches that were trained on, in all steps
        "batch": statistics.median(rows),
        "rate": sum(rows[warm:]) / total,  # samples a second
        "median": statistics.median(step["seconds"] for step in measured),
        "shares": shares | {COMPUTING: 1 - sum(shares.values())},
        "memory": [end.get("GPU memory" if gpu else "memory") or 0 for end in ends],
        "on GPU": gpu,
        "seconds": left.seconds,  # of the run as a whole
    }


@dataclass
class Row:
    """A way to run the script, with its figures in each round, or why it has none."""

    way: Way
    rounds: list[Figures] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # the end of its traceback

    def of(self, name: str) -> float:
        """Return the median over rounds of a figure or a share."""
        return statistics.median((run | run["shares"])[name] for run in self.rounds)

    @property
    def spread(self) -> float:
        """Return how far rounds lie above or below their middle, as a part of it."""
        rates = [run["rate"] for run in self.rounds]
        return (max(rates) - min(rates)) / (max(rates) + min(rates)) if max(rates) else 0.0

    @property
    def memory(self) -> int:
        """Return the most bytes that a rank had in any round."""
        return max(max(run["memory"]) for run in self.rounds)

    def speed_up(self, plain: Row) -> float | None:
        """Return the median over rounds, each against one process in the same round."""
        pairs = zip(self.rounds, plain.rounds, strict=False)
        found = [mine["rate"] / theirs["rate"] for mine, theirs in pairs if theirs["rate"]]
        return statistics.median(found) if found else None

    def data(self, plain: Row) -> dict[str, Any]:
        """Return all of the row, for JSON."""
        about = {"row": self.way.label, "ranks": self.way.ranks, "failed": self.failed}
        if not self.rounds:
            return about
        names = ("steps", "samples", "batch", "seconds", "rate", "median")
        return about | {
            **{name: self.of(name) for name in names},
            "shares": {name: self.of(name) for name in self.rounds[0]["shares"]},
            "spread": self.spread,
            "memory": self.memory,
            "speed-up": self.speed_up(plain),
            "rounds": self.rounds,
        }
