"""Run a script in all the ways that there are: how fast each is, and where the time goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from autoddp.options import Options
from autoddp.process import devices
from autoddp.process.script import Script
from autoddp.report import PREFIX
from autoddp.tools import runs
from autoddp.tools.bench.figures import LEAST, Row, figures
from autoddp.tools.bench.show import BenchOptions, finish
from autoddp.tools.bench.ways import LOCAL, Way, ways
from autoddp.tools.runs import Left, Runner, tail

NOT_RUN = 2  # the exit code
NO_LOADER = "the local view is left out: no DataLoader makes this script's batches, to be shared"
NO_BATCH = "no batch was seen at all: a sample is a step"


class NotRun(Exception):
    """The error that one process cannot run the script, or that there is nothing to measure."""

    def __init__(self, why: str, lines: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.lines = list(lines)


def run(script: Script, options: Options, wanted: BenchOptions) -> int:
    """Measure the script in all ways, and tell the result.

    Every run is in a private copy of the folder. Rows alternate: each round runs all of them once,
    so that what else the machine does falls on all. Threads are as `autoddp run` and `python` have
    them: one process has all cores, ranks share them.

    Args:
        script: The script to run.
        options: The options that the rows of all ranks share.
        wanted: What to measure, and what to make of it.

    Returns:
        0, or 1 if a row failed, 2 if one process cannot run the script.

    Raises:
        BadInput: The options do not allow it, and nothing was started; or there is no room.
    """
    runs.check(script, options, "bench")
    there = devices.there(os.environ)
    found, notes = ways(options, counts(wanted.nproc, len(there.names)), there)
    with Runner.of(script, "times", options.quiet) as runner:
        bench = Bench(runner, found, wanted)
        try:
            bench.measure()
        except NotRun as error:
            print("\n".join([f"{PREFIX} {error}", *error.lines]), file=sys.stderr)
            return NOT_RUN
    return finish(script.name, bench.rows, [*notes, *bench.notes], wanted, options.quiet)


def counts(given: Sequence[int], gpus: int) -> list[int]:
    """Return the numbers of ranks, each once; without any, 2, 4, ... as far as GPUs go."""
    return sorted(set(given)) or [2**k for k in range(1, max(2, gpus).bit_length())]


class Bench:
    """The rows of the tables, measured round by round."""

    def __init__(self, runner: Runner, found: Sequence[Way], wanted: BenchOptions) -> None:
        self.runner, self.wanted = runner, wanted
        self.rows = [Row(way) for way in found]
        self.by_hand: int | None = None  # rows of a batch, where no loader makes it
        self.notes: list[str] = []

    def measure(self) -> None:
        """Run every row in every round.

        Raises:
            NotRun: One process cannot run the script, or makes too few steps.
        """
        for number in range(1, self.wanted.rounds + 1):
            for row in list(self.rows):
                if row in self.rows and not row.failed:
                    self._run(row, f"round {number} of {self.wanted.rounds}: {row.way.title}")

    def _run(self, row: Row, name: str) -> None:
        way = row.way
        left = self.runner.run(
            name, way.options, steps=self.wanted.steps, changes=way.changes, environ=way.environ
        )
        left.forget()
        steps = len(left.steps.get(0, []))
        if row is self.rows[0]:
            self._check_plain(left, steps)
        elif left.raised or left.code or steps < LEAST:
            row.failed = tail(left.err) or [f"exit code {left.code} after {steps} steps"]
            return
        row.rounds.append(figures(left, row.way, self.by_hand))

    def _check_plain(self, left: Left, steps: int) -> None:
        name = self.runner.script.name
        if left.raised or (left.code and not steps):
            why = f"{name} ends with exit code {left.code} on one process, without autoddp"
            raise NotRun(why, tail(left.err))
        if steps < LEAST:
            raise NotRun(
                f"{name} makes {steps or 'no'} optimizer step{'s' * (steps != 1)} on one process: "
                "there is nothing to measure (bench looks at steps of torch.optim's optimizers, "
                "from the second on)"
            )
        if not any(step["rows"] for step in left.times[0]):
            seen = left.ends[0].get("by hand")
            self.by_hand = seen or 1
            self.rows = [row for row in self.rows if row.way.label != LOCAL]
            self.notes = [NO_LOADER] if seen else [NO_LOADER, NO_BATCH]
