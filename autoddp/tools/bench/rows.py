"""The rows of the tables: ways to run a script, and the figures of each round."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoddp.options import Options
from autoddp.process import devices
from autoddp.process.devices import Devices
from autoddp.tools.bench import replicate
from autoddp.tools.record.recording import PARTS, Recording
from autoddp.tools.record.script import Change

PLAIN, DATA_PARALLEL, GLOBAL, LOCAL = "plain", "DataParallel", "global view", "local view"
COMPUTING = "computing"
WARM_UP = 5  # steps at most: decisions, the first allocations, DDP's buckets, made anew once
FIGURES = ("steps", "samples", "batch", "seconds", "rate", "median")
Figures = dict[str, Any]


@dataclass
class Row:
    """A way to run a script, with the figures of each round, or the reason why it has none."""

    label: str  # the kind of the way, or the folder of a recording
    options: Options
    ranks: int
    devices: int  # GPUs or ranks
    changes: tuple[Change, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    rounds: list[Figures] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # the end of its traceback

    @property
    def title(self) -> str:
        """Return the name of the way in a sentence."""
        return f"{self.label}, {self.ranks} ranks" if self.ranks > 1 else self.label

    def add(self, ran: Recording) -> None:
        """Compute the figures of a run of at least two steps; times are those of rank 0."""
        mine = ran.steps[0]
        # in the local view rank 0 sees only its share of a batch
        ranks = ran.steps.values() if self.options.view == "local" else [mine]
        rows = [sum(step["rows"] for step in steps) for steps in zip(*ranks, strict=False)]
        if not any(rows):  # without a batch, each backward pass counts as one sample
            rows = [step["backwards"] for step in mine]
        warm = max(1, min(WARM_UP, len(mine) // 4))
        measured = mine[warm:]
        total = sum(step["seconds"] for step in measured)
        shares = {part: sum(step[part] for step in measured) / total for part in PARTS}
        found = {
            "steps": len(mine),
            "warm-up": warm,  # steps, which no time below includes
            "samples": sum(rows),  # of the batches of all steps
            "batch": statistics.median(rows),
            "rate": sum(rows[warm:]) / total,  # samples a second
            "median": statistics.median(step["seconds"] for step in measured),
            "shares": shares | {COMPUTING: 1 - sum(shares.values())},
            "seconds": ran.seconds,  # of the whole run
        }
        self.rounds.append(found)

    def of(self, name: str) -> float:
        """Return the median over rounds of a figure or a share."""
        return statistics.median((run | run["shares"])[name] for run in self.rounds)

    @property
    def spread(self) -> float:
        """Return half the range of the rates of rounds, relative to its middle."""
        rates = [run["rate"] for run in self.rounds]
        return (max(rates) - min(rates)) / (max(rates) + min(rates)) if max(rates) else 0.0

    def speed_up(self, plain: Row) -> float:
        """Return the median over rounds of the rate relative to one process in the same round."""
        pairs = zip(self.rounds, plain.rounds, strict=False)
        found = [mine["rate"] / theirs["rate"] for mine, theirs in pairs if theirs["rate"]]
        return statistics.median(found) if found else 0.0

    def data(self, plain: Row) -> dict[str, Any]:
        """Return the row for JSON."""
        about = {"row": self.label, "ranks": self.ranks, "failed": self.failed}
        if not self.rounds:
            return about
        about |= {name: self.of(name) for name in FIGURES} | {"rounds": self.rounds}
        about["shares"] = {name: self.of(name) for name in self.rounds[0]["shares"]}
        return about | {"spread": self.spread, "speed-up": self.speed_up(plain)}


def rows_of(options: Options, given: Sequence[int], found: Devices) -> list[Row]:
    """Make a row for each way to run a script, one process first.

    The numbers of ranks, if none are given, are 2, 4, ... up to the number of GPUs.
    """
    gpus = found.names
    # one process sees the first of several GPUs
    first = {devices.variable(found.kind, os.environ): gpus[0]} if len(gpus) > 1 else {}
    alone = replace(options, nproc=1)
    rows = [Row(PLAIN, alone, 1, 1, environ=first)]
    if len(gpus) > 1 and found.kind == "cuda":
        rows.append(Row(DATA_PARALLEL, alone, 1, len(gpus), (replicate.setup,)))
    gpu_counts = [2**k for k in range(1, max(2, len(gpus)).bit_length())]
    for ranks in sorted({*given} - {1}) if given else gpu_counts:
        for label, view in ((GLOBAL, "global"), (LOCAL, "local")):
            rows.append(Row(label, replace(options, nproc=ranks, view=view), ranks, ranks))
    return rows
