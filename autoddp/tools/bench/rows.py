"""The rows of the tables: ways to run a script, with the figures of each round."""

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

PLAIN, DATA_PARALLEL, GLOBAL, LOCAL = "one process", "DataParallel", "global view", "local view"
SHARDED = "sharded parameters"
COMPUTING = "computing"
WARM_UP = 5  # the most steps of a warm-up: decisions, allocations, DDP's new buckets
FIGURES = ("steps", "samples", "batch", "seconds", "rate", "median")
Figures = dict[str, Any]


@dataclass
class Row:
    """A way to run a script, with the figures of each round, or an error."""

    label: str  # such as "global view", or the folder of a recording
    options: Options
    ranks: int
    devices: int  # GPUs or ranks
    changes: tuple[Change, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    rounds: list[Figures] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # the last lines of an error

    @property
    def title(self) -> str:
        """Return the label and the number of ranks."""
        return f"{self.label}, {self.ranks} ranks" if self.ranks > 1 else self.label

    def add(self, run: Recording) -> None:
        """Compute the figures of a run of at least two steps; times are those of rank 0."""
        of_rank0 = run.steps[0]
        # in the local view rank 0 sees only its share of a batch
        ranks = run.steps.values() if self.options.view == "local" else [of_rank0]
        rows = [sum(step["rows"] for step in steps) for steps in zip(*ranks, strict=False)]
        if not any(rows):  # without a batch, each backward pass counts as one sample
            rows = [step["backwards"] for step in of_rank0]
        warm_up = max(1, min(WARM_UP, len(of_rank0) // 4))
        measured = of_rank0[warm_up:]
        total = sum(step["seconds"] for step in measured)
        shares = {part: sum(step[part] for step in measured) / total for part in PARTS}
        figures = {
            "steps": len(of_rank0),
            "warm-up": warm_up,  # steps that no time below includes
            "samples": sum(rows),  # of the batches of all steps
            "batch": statistics.median(rows),
            "rate": sum(rows[warm_up:]) / total,  # samples a second
            "median": statistics.median(step["seconds"] for step in measured),
            "shares": shares | {COMPUTING: 1 - sum(shares.values())},
            "seconds": run.seconds,  # of the whole run
        }
        self.rounds.append(figures)

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
        ratios = [this["rate"] / base["rate"] for this, base in pairs if base["rate"]]
        return statistics.median(ratios) if ratios else 0.0

    def data(self, plain: Row) -> dict[str, Any]:
        """Return the row for JSON."""
        about = {"row": self.label, "ranks": self.ranks, "failed": self.failed}
        if not self.rounds:
            return about
        about |= {name: self.of(name) for name in FIGURES} | {"rounds": self.rounds}
        about["shares"] = {name: self.of(name) for name in self.rounds[0]["shares"]}
        return about | {"spread": self.spread, "speed-up": self.speed_up(plain)}


def rows_of(options: Options, nprocs: Sequence[int], found: Devices) -> list[Row]:
    """Make a row for each way to run a script, one process first.

    Without `nprocs`, the numbers of ranks are 2, 4, ... up to the number of GPUs.
    """
    gpus = found.names
    # one process sees the first of several GPUs
    first = {devices.variable(found.kind, os.environ): gpus[0]} if len(gpus) > 1 else {}
    one = replace(options, nproc=1)
    rows = [Row(PLAIN, one, 1, 1, environ=first)]
    if len(gpus) > 1 and found.kind == "cuda":
        rows.append(Row(DATA_PARALLEL, one, 1, len(gpus), (replicate.setup,)))
    gpu_counts = [2**k for k in range(1, max(2, len(gpus)).bit_length())]
    for ranks in sorted({*nprocs} - {1}) if nprocs else gpu_counts:
        ranked = replace(options, nproc=ranks, view="global")
        ways = {GLOBAL: ranked, LOCAL: replace(ranked, view="local")}
        if options.parameters == "auto":
            ways[SHARDED] = replace(ranked, parameters="sharded")
        rows += [Row(label, way, ranks, ranks) for label, way in ways.items()]
    return rows
