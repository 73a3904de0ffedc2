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
from autoddp.tools.bench.ways import LOCAL, ways
from autoddp.tools.runs import Left, Runner, tail

NOT_RUN = 2  # the exit code
NO_LOADER = "the local view is left out: no DataLoader makes this script's batches, to be shared"


def run(script: Script, options: Options, wanted: BenchOptions) -> int:
    """Measure the script in all ways; 0, 1 if a row failed, 2 if one process cannot run it.

    Rows alternate: each round runs all of them once, so that what else the machine does falls on
    all. Threads are as `autoddp run` and `python` have them: one process has all cores, ranks share
    them.

    Raises:
        BadInput: The options do not allow it, and nothing was started; or there is no room.
    """
    runs.check(script, options, "bench")
    there = devices.there(os.environ)
    found, notes = ways(options, counts(wanted.nproc, len(there.names)), there)
    rows = [Row(way) for way in found]
    with Runner.of(script, "times", options.quiet) as runner:
        for number in range(1, wanted.rounds + 1):
            for row in list(rows):
                if row in rows and not row.failed:
                    left = measure(runner, row, f"round {number} of {wanted.rounds}", wanted.steps)
                if row.failed and row is rows[0]:
                    print(
                        f"{PREFIX} {script.name} {why(left)}",
                        *row.failed,
                        sep="\n",
                        file=sys.stderr,
                    )
                    return NOT_RUN
                if row is rows[0] and not any(step["loading"] for step in left.times[0]):
                    rows = [each for each in rows if each.way.label != LOCAL]
                    notes = [*dict.fromkeys([*notes, NO_LOADER])]
    return finish(script.name, rows, notes, wanted, options.quiet)


def measure(runner: Runner, row: Row, name: str, steps: int | None) -> Left:
    """Run a row once, and take its figures, or how it failed."""
    way = row.way
    left = runner.run(
        f"{name}: {way.title}", way.options, steps=steps, changes=way.changes, environ=way.environ
    )
    left.forget()
    made = len(left.steps.get(0, []))
    if left.raised or made < LEAST or (left.code and not left.ends.get(0)):
        row.failed = tail(left.err) or [f"exit code {left.code} after {made} steps"]
    else:
        row.rounds.append(figures(left, way))
    return left


def why(left: Left) -> str:
    """Say why nothing can be measured of one process."""
    if left.code:
        return f"ends with exit code {left.code} on one process, without autoddp"
    return (
        f"makes fewer than {LEAST} optimizer steps on one process: there is nothing to measure "
        "(bench looks at steps of torch.optim's optimizers, from the second on)"
    )


def counts(given: Sequence[int], gpus: int) -> list[int]:
    """Return the numbers of ranks, each once; without any, 2, 4, ... as far as GPUs go."""
    return sorted(set(given)) or [2**k for k in range(1, max(2, gpus).bit_length())]
