"""The rows of the tables: ways to run a script, and their figures in each round."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoddp.options import Options
from autoddp.process import devices
from autoddp.process.devices import There
from autoddp.tools.bench import replicate
from autoddp.tools.record.recording import PARTS, Recording
from autoddp.tools.record.script import Change

PLAIN, DATA_PARALLEL, GLOBAL, LOCAL = "plain", "DataParallel", "global view", "local view"
COMPUTING = "computing"
LEAST = 2  # steps: the first one is not measured
WARM_UP = 5  # steps at most: decisions, the first allocations, DDP's buckets, made anew once
Figures = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """A way to run a script: options, devices, changes and environment."""

    label: str  # its kind, or the folder of a recording
    options: Options
    ranks: int
    devices: int  # GPUs or ranks
    changes: tuple[Change, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the way's name in a sentence."""
        return f"{self.label}, {self.ranks} ranks" if self.ranks > 1 else self.label


def ways(options: Options, counts: Sequence[int], found: There) -> tuple[list[Way], list[str]]:
    """Make all ways to run a script, one process first, and a note on what is left out."""
    gpus = found.names
    # one process sees the first of several
    first = {devices.variable(found.kind, os.environ): gpus[0]} if len(gpus) > 1 else {}
    alone = replace(options, nproc=1)
    rows, left_out = [Way(PLAIN, alone, 1, 1, environ=first)], []
    if len(gpus) > 1 and found.kind == "cuda":
        rows.append(Way(DATA_PARALLEL, alone, 1, len(gpus), (replicate.setup,)))
    else:
        here = f"{len(gpus)} {found.kind}" if gpus else "none"
        left_out.append(f"DataParallel is left out: it takes several CUDA GPUs, and here is {here}")
    for ranks in (count for count in counts if count != 1):
        for label, view in ((GLOBAL, "global"), (LOCAL, "local")):
            rows.append(Way(label, replace(options, nproc=ranks, view=view), ranks, ranks))
    return rows, left_out


def figures(ran: Recording, way: Way) -> Figures:
    """Compute the figures of a run of at least two steps.

    Times are rank 0's, in seconds; memory is each rank's, in bytes.
    """
    mine = ran.steps[0]
    # in the local view rank 0 sees only its share of a batch
    ranks = ran.steps.values() if way.options.view == "local" else [mine]
    rows = [sum(step["rows"] for step in steps) for steps in zip(*ranks, strict=False)]
    if not any(rows):  # without a batch each backward is of a sample
        rows = [step["backwards"] for step in mine]
    warm = max(1, min(WARM_UP, len(mine) // 4))
    measured = mine[warm:]
    total = sum(step["seconds"] for step in measured)
    shares = {part: sum(step[part] for step in measured) / total for part in PARTS}
    ends = [ran.ends.get(rank, {}) for rank in range(way.ranks)]
    return {
        "steps": len(mine),
        "warm-up": warm,  # steps, which are in no time below
        "samples": sum(rows),  # of batches that were trained on, in all steps
        "batch": statistics.median(rows),
        "rate": sum(rows[warm:]) / total,  # samples a second
        "median": statistics.median(step["seconds"] for step in measured),
        "shares": shares | {COMPUTING: 1 - sum(shares.values())},
        # on its GPU, if it has one
        "memory": [end.get("GPU memory") or end.get("memory") or 0 for end in ends],
        "seconds": ran.seconds,  # of the run as a whole
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
        """Return half the range of the rates of rounds, as a part of its middle."""
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
        """Return the row for JSON."""
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
