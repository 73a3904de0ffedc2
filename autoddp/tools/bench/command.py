"""Run a script in all the ways that there are: how fast each is, and where the time goes."""

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
from autoddp.tools.bench.figures import COMPUTING, LEAST, Row, figures
from autoddp.tools.bench.ways import LOCAL, Way, ways
from autoddp.tools.record.recording import GATHERING, GRADIENTS, LOADING, ReadRecording, read
from autoddp.tools.runs import Left, Runner, tail
from autoddp.tools.told import ToolOptions, aligned

NOT_RUN = 2  # the exit code
NO_LOADER = "the local view is left out: no DataLoader makes this script's batches, to be shared"
SPEED = ["batch", "seconds", "samples/s", "±", "step ms", "speed-up"]
PARTS = [LOADING, COMPUTING, GATHERING, GRADIENTS]


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ToolOptions):
    """The options of `autoddp bench` that `autoddp run` has not."""

    nproc: tuple[int, ...] = ()
    rounds: int = 3
    plot: str | None = None

    def __post_init__(self) -> None:
        self.check(LEAST, f"it takes {LEAST} or more: the first is not measured")
        if self.rounds < 1:
            raise BadInput(f"--rounds is {self.rounds}; each row is run at least once")
        if self.plot is not None:
            plots.check(self.plot)


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
    with Runner.of(script, False, options.quiet) as runner:
        for number in range(1, wanted.rounds + 1):
            for row in [row for row in rows if not row.failed]:
                if row not in rows:  # left out meanwhile
                    continue
                left = measure(runner, row, f"round {number} of {wanted.rounds}", wanted.steps)
                if row is not rows[0]:
                    continue
                if row.failed:
                    said = [f"{PREFIX} {script.name} {why(left)}", *row.failed]
                    print(*said, sep="\n", file=sys.stderr)
                    return NOT_RUN
                if not any(step["loading"] for step in left.steps[0]):
                    rows = [each for each in rows if each.way.label != LOCAL]
                    notes = [*dict.fromkeys([*notes, NO_LOADER])]
    return finish(script.name, rows, notes, wanted, options.quiet)


def measure(runner: Runner, row: Row, name: str, steps: int | None) -> Left:
    """Run a row once, and take its figures, or how it failed."""
    way = row.way
    left = runner.run(
        f"{name}: {way.title}", way.options, steps=steps, changes=way.changes, environ=way.environ
    )
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


def summarise(folders: Sequence[str], wanted: BenchOptions, quiet: bool) -> int:
    """Tell how fast the runs were that were recorded, the first of them as the measure.

    Raises:
        BadInput: One of them is no recording, or has too few steps.
    """
    found = [read(folder) for folder in folders]
    rows = [row_of(each) for each in found]
    notes = [note for each in found for note in each.lacks()]
    notes += [f"{each.name} ended with exit code {each.code}" for each in found if each.code]
    if rows[0].way.ranks > 1:
        notes.append(f"speed-up is against {found[0].name}, which is not of one process")
    return finish(found[0].about.script, rows, notes, replace(wanted, rounds=1), quiet)


def row_of(found: ReadRecording) -> Row:
    """Make the row of a recording.

    Raises:
        BadInput: There are too few steps in it.
    """
    if (made := len(found.steps.get(0, []))) < LEAST:
        raise BadInput(
            f"{found.name} holds {made} steps; it takes {LEAST} or more: the first is not measured"
        )
    way = Way(found.name, Options(view=found.about.view), found.about.ranks, found.about.ranks)
    return Row(way, [figures(found, way)])


def finish(
    script: str, rows: Sequence[Row], notes: Sequence[str], wanted: BenchOptions, quiet: bool
) -> int:
    """Tell all of it: tables, failed rows, notes, picture and JSON; return 1 if a row failed."""
    plain, measured = rows[0], [row for row in rows if row.rounds]
    first = plain.rounds[0]
    notes = [
        *notes,
        f"medians over {wanted.rounds} round{'s' * (wanted.rounds > 1)} (± is half their range); "
        f"seconds are of the whole run; the first {first['warm-up']} of {first['steps']} steps are "
        f"in no other figure; MiB is the most that a rank had{' on its GPU' * first['on GPU']}",
        *["in the local view each rank trains on its share, as with DDP by hand"]
        * any(row.way.options.view == "local" for row in rows),
    ]
    if not quiet:
        speeds = [["how fast", "ranks", *SPEED], *(speed(row, plain) for row in measured)]
        shares = [["where the time of a step goes", "ranks", *PARTS, "MiB"], *map(parts, measured)]
        print("", *aligned(speeds), "", *aligned(shares), "", sep="\n")
        for row in (row for row in rows if row.failed):
            print(f"{PREFIX} {row.way.title} failed:", *row.failed, sep="\n")
        print(*(f"{PREFIX} {note}" for note in notes), sep="\n")
    if wanted.plot is not None:
        gained = [(row.way.label, row.way.devices, row.speed_up(plain) or 0.0) for row in measured]
        plots.speed_up(wanted.plot, gained)
    about = {"script": script, "steps": wanted.steps, "rounds": wanted.rounds}
    wanted.write(about | {"rows": [row.data(plain) for row in rows], "notes": notes})
    return int(any(row.failed for row in rows))


def speed(row: Row, plain: Row) -> list[str]:
    """Return how fast a row is, in cells."""
    figures = f"{row.of('batch'):g}", f"{row.of('seconds'):.1f}", f"{row.of('rate'):.0f}"
    times = f"{row.spread:.0%}", f"{1000 * row.of('median'):.2f}"
    name = row.way.label, str(row.way.ranks)
    return [*name, *figures, *times, f"{row.speed_up(plain) or 0.0:.2f}"]


def parts(row: Row) -> list[str]:
    """Return where the time of a row goes, and how much memory it takes, in cells."""
    shares = [f"{row.of(name):.0%}" for name in PARTS]
    return [row.way.label, str(row.way.ranks), *shares, f"{row.memory / 2**20:.0f}"]
