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
from autoddp.tools.bench.rows import COMPUTING, LEAST, LOCAL, Row, Way, figures, ways
from autoddp.tools.record.recording import GATHERING, GRADIENTS, LOADING, Recording, read_whole
from autoddp.tools.runs import Runner, tail
from autoddp.tools.told import ToolOptions, aligned

NOT_RUN = 2  # the exit code
NO_LOADER = "the local view is left out: no DataLoader makes this script's batches, to be shared"
SPEED = ["how fast", "ranks", "batch", "seconds", "samples/s", "±", "step ms", "speed-up"]
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

    Each round runs all rows once, so that other load on the machine affects all. Threads are as
    `autoddp run` and `python` have them: one process has all cores, ranks share them.

    Raises:
        BadInput: The options do not allow it, and nothing was started; or there is no room.
    """
    runs.check(script, options, "bench")
    there = devices.there(os.environ)
    found, notes = ways(options, counts(wanted.nproc, len(there.names)), there)
    plain, *others = rows = [Row(way) for way in found]
    with Runner.of(script, False, options.quiet) as runner:
        for number in range(1, wanted.rounds + 1):
            name = f"round {number} of {wanted.rounds}"
            ran = measure(runner, plain, name, wanted.steps)
            if plain.failed:
                error = [f"{PREFIX} {script.name} {why(ran)}", *plain.failed]
                print(*error, sep="\n", file=sys.stderr)
                return NOT_RUN
            if not any(step["loading"] for step in ran.steps[0]):
                others = [row for row in others if row.way.label != LOCAL]
                rows, notes = [plain, *others], [*dict.fromkeys([*notes, NO_LOADER])]
            for row in (row for row in others if not row.failed):
                measure(runner, row, name, wanted.steps)
    return finish(script.name, rows, notes, wanted, options.quiet)


def measure(runner: Runner, row: Row, name: str, steps: int | None) -> Recording:
    """Run a row once, and keep its figures, or how it failed."""
    way = row.way
    ran = runner.run(
        f"{name}: {way.title}", way.options, steps=steps, changes=way.changes, environ=way.environ
    )
    made = len(ran.steps.get(0, []))
    if ran.raised or made < LEAST or (ran.code and not ran.ends.get(0)):
        row.failed = tail(ran.err) or [f"exit code {ran.code} after {made} steps"]
    else:
        row.rounds.append(figures(ran, way))
    return ran


def why(ran: Recording) -> str:
    """Say why nothing can be measured of one process."""
    if ran.code:
        return f"ends with exit code {ran.code} on one process"
    return (
        f"makes fewer than {LEAST} optimizer steps on one process: there is nothing to measure "
        "(bench looks at steps of torch.optim's optimizers, from the second on)"
    )


def counts(given: Sequence[int], gpus: int) -> list[int]:
    """Return the numbers of ranks, each once; without any, 2, 4, ... as far as GPUs go."""
    return sorted(set(given)) or [2**k for k in range(1, max(2, gpus).bit_length())]


def summarise(folders: Sequence[str], wanted: BenchOptions, quiet: bool) -> int:
    """Tell how fast the recorded runs were; the first is the measure of the others.

    Raises:
        BadInput: One of them is no recording, or has too few steps.
    """
    found = [read_whole(folder) for folder in folders]
    notes = []
    for each in found:
        name, ranks = each.name, each.about["ranks"]
        if lost := [str(rank) for rank in range(ranks) if rank not in each.steps]:
            notes.append(f"{name} lacks ranks {', '.join(lost)}: copy their files to it")
        if each.code != 0:
            how = "has not ended" if each.code is None else f"ended with exit code {each.code}"
            notes.append(f"{name} {how}")
    if found[0].about["ranks"] > 1:
        notes.append(f"speed-up is against {found[0].name}, which is not of one process")
    rows, wanted = [row_of(each) for each in found], replace(wanted, rounds=1)
    return finish(found[0].about["script"], rows, notes, wanted, quiet)


def row_of(found: Recording) -> Row:
    """Make the row of a recording.

    Raises:
        BadInput: There are too few steps in it.
    """
    if (made := len(found.steps.get(0, []))) < LEAST:
        raise BadInput(
            f"{found.name} holds {made} steps; it takes {LEAST} or more: the first is not measured"
        )
    ranks = found.about["ranks"]
    way = Way(found.name, Options(view=found.about["view"]), ranks, ranks)
    return Row(way, [figures(found, way)])


def finish(
    script: str, rows: Sequence[Row], notes: Sequence[str], wanted: BenchOptions, quiet: bool
) -> int:
    """Print tables, failed rows and notes, write picture and JSON; return 1 if a row failed."""
    plain, measured = rows[0], [row for row in rows if row.rounds]
    first = plain.rounds[0]
    notes = [
        *notes,
        f"medians over {wanted.rounds} round{'s' * (wanted.rounds > 1)} (± is half their range); "
        f"seconds are of the whole run; the first {first['warm-up']} of {first['steps']} steps are "
        "in no other figure; MiB is the most that a rank had, on its GPU if it has one",
        *["in the local view each rank trains on its share, as with DDP by hand"]
        * any(row.way.options.view == "local" for row in rows),
    ]
    if not quiet:
        shares = [["where the time of a step goes", "ranks", *PARTS, "MiB"], *map(parts, measured)]
        speeds = [SPEED, *(speed(row, plain) for row in measured)]
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
