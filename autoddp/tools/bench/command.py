"""Run a script in several ways, and show how fast each is and where the time goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process import devices
from autoddp.process.script import Script
from autoddp.report import PREFIX
from autoddp.tools import plots, runs
from autoddp.tools.bench.rows import COMPUTING, LOCAL, Row, rows_of
from autoddp.tools.options import ToolOptions, aligned
from autoddp.tools.record.recording import (
    GATHERING,
    GRADIENTS,
    LEAST,
    LOADING,
    Recording,
    read_whole,
)
from autoddp.tools.runs import Runner, tail

NOT_RUN = 2  # the exit code
NO_LOADER = "the local view was not run: it shards the batches of a DataLoader, and there is none"
REQUIRED = f"it must run {LEAST} or more steps of torch.optim's optimizers without an error"
SPEED = ["how fast", "ranks", "batch", "seconds", "samples/s", "±", "step ms", "speed-up"]
PARTS = [LOADING, COMPUTING, GATHERING, GRADIENTS]


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ToolOptions):
    """The options of `autoddp bench` that `autoddp run` does not have."""

    nproc: tuple[int, ...] = ()
    rounds: int = 3
    plot: str | None = None

    def __post_init__(self) -> None:
        self.check(LEAST, f"it takes {LEAST} or more, as the first is not measured")
        if self.rounds < 1:
            raise BadInput(f"--rounds is {self.rounds}; each row is run at least once")
        if self.plot is not None:
            plots.check(self.plot)


def run(script: Script, options: Options, tool_options: BenchOptions) -> int:
    """Measure the script; return 0, 1 if a row failed, or 2 if one process cannot run it.

    Each round runs all rows once, so that other load on the machine affects all of them. One
    process uses all cores, ranks share them, as with `python` and `autoddp run`.

    Raises:
        BadInput: The options are wrong, and nothing was started; or the disk is full.
    """
    runs.check(script, replace(options, nproc=max(tool_options.nproc, default=None)), "bench")
    plain, *others = rows_of(options, tool_options.nproc, devices.there(os.environ))
    notes = []
    with Runner.of(script, False, options.quiet) as runner:
        for number in range(1, tool_options.rounds + 1):
            name = f"round {number} of {tool_options.rounds}"
            first = measure(runner, plain, name, tool_options.steps)
            if plain.failed:
                why = f"{script.name} cannot be measured on one process ({REQUIRED}):"
                print(f"{PREFIX} {why}", *plain.failed, sep="\n", file=sys.stderr)
                return NOT_RUN
            if not any(step[LOADING] for step in first.steps[0]):
                others, notes = [row for row in others if row.label != LOCAL], [NO_LOADER]
            for row in (row for row in others if not row.failed):
                measure(runner, row, name, tool_options.steps)
    return finish(script.name, [plain, *others], notes, tool_options, options.quiet)


def measure(runner: Runner, row: Row, name: str, steps: int | None) -> Recording:
    """Run a row once, and add its figures or its error."""
    run = runner.run(
        f"{name}: {row.title}", row.options, steps=steps, changes=row.changes, environ=row.environ
    )
    count = len(run.steps.get(0, []))
    if run.raised or count < LEAST or (run.code and not run.ends.get(0)):
        row.failed = [f"exit code {run.code} after {count} steps", *tail(run.err)]
    else:
        row.add(run)
    return run


def summarise(folders: Sequence[str], tool_options: BenchOptions, quiet: bool) -> int:
    """Show how fast the recorded runs were, relative to the first.

    Raises:
        BadInput: A folder has no recording of enough steps.
    """
    rows, notes = [], []
    for run in map(read_whole, folders):
        name, ranks = run.name, run.about["ranks"]
        if run.code != 0:
            end = "has not ended" if run.code is None else f"ended with exit code {run.code}"
            notes.append(f"{name} {end}")
        rows.append(Row(name, Options(view=run.about["view"]), ranks, ranks))
        rows[-1].add(run)
        script = run.about["script"]
    if rows[0].ranks > 1:
        notes.append(f"speed-up is relative to {rows[0].label}, which is not a run of one process")
    return finish(script, rows, notes, replace(tool_options, rounds=1), quiet)


def finish(
    script: str, rows: Sequence[Row], notes: Sequence[str], bench: BenchOptions, quiet: bool
) -> int:
    """Print tables, failed rows and notes, write plot and JSON; return 1 if a row failed."""
    plain, measured = rows[0], [row for row in rows if row.rounds]
    first = plain.rounds[0]
    notes = [
        *notes,
        f"medians over {bench.rounds} round{'s' * (bench.rounds > 1)} (± is half their range); "
        f"seconds are of the whole run; no other figure includes the first {first['warm-up']} of "
        f"{first['steps']} steps; an evaluation is part of the step that follows it",
    ]
    if not quiet:
        shares = [["where the time of a step goes", "ranks", *PARTS], *map(parts, measured)]
        speeds = [SPEED, *(speed(row, plain) for row in measured)]
        print("", *aligned(speeds), "", *aligned(shares), "", sep="\n")
        for row in (row for row in rows if row.failed):
            print(f"{PREFIX} {row.title} failed:", *row.failed, sep="\n")
        print(*(f"{PREFIX} {note}" for note in notes), sep="\n")
    if bench.plot is not None:
        points = [(row.label, row.devices, row.speed_up(plain)) for row in measured]
        plots.speed_up(bench.plot, points)
    about = {"script": script, "steps": bench.steps, "rounds": bench.rounds}
    bench.write(about | {"rows": [row.data(plain) for row in rows], "notes": notes})
    return int(any(row.failed for row in rows))


def speed(row: Row, plain: Row) -> list[str]:
    """Return the cells of a row in the table of speeds."""
    figures = f"{row.of('batch'):g}", f"{row.of('seconds'):.1f}", f"{row.of('rate'):.0f}"
    times = f"{row.spread:.0%}", f"{1000 * row.of('median'):.2f}"
    return [row.label, str(row.ranks), *figures, *times, f"{row.speed_up(plain):.2f}"]


def parts(row: Row) -> list[str]:
    """Return the cells of a row in the table of times."""
    return [row.label, str(row.ranks), *(f"{row.of(name):.0%}" for name in PARTS)]
