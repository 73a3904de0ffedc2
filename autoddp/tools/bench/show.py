"""What there is to show: two tables, within 100 columns, notes, a picture, and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoddp.errors import BadInput
from autoddp.report import PREFIX
from autoddp.tools import plots, runs
from autoddp.tools.bench.figures import COMPUTING, LEAST, Row
from autoddp.tools.record.phases import GATHERING, GRADIENTS, LOADING

WIDTH = 100
LABEL = 22  # characters of what a row is called: a recording is by its folder
SPEED = ("batch", "seconds", "samples/s", "±", "step ms", "speed-up")
PARTS = (LOADING, COMPUTING, GATHERING, GRADIENTS)


@dataclass(frozen=True)
class BenchOptions:
    """The options of `autoddp bench` that `autoddp run` has not."""

    nproc: tuple[int, ...] = ()
    steps: int | None = None
    rounds: int = 3
    json: str | None = None
    plot: str | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < LEAST:
            raise BadInput(
                f"--steps is {self.steps}; it takes {LEAST} or more: the first is not measured"
            )
        if self.rounds < 1:
            raise BadInput(f"--rounds is {self.rounds}; each row is run at least once")
        runs.check_files(self.json, self.plot)


def finish(
    script: str, rows: Sequence[Row], notes: Sequence[str], wanted: BenchOptions, quiet: bool
) -> int:
    """Write tables, notes, picture and JSON; return 1 if a row failed, else 0."""
    notes = [*notes, *said_of(rows, wanted)]
    if not quiet:
        tell(rows, notes)
    if wanted.plot is not None:
        there = [row for row in rows[1:] if row.rounds]
        gained = [(row.way.label, row.way.devices, row.speed_up(rows[0]) or 0.0) for row in there]
        plots.speed_up(wanted.plot, [(rows[0].way.label, 1, 1.0), *gained])
    if wanted.json is not None:
        about = {"script": script, "steps": wanted.steps, "rounds": wanted.rounds}
        data = about | {"rows": [row.data(rows[0]) for row in rows], "notes": notes}
        Path(wanted.json).write_text(json.dumps(data, indent=2))
    return int(any(row.failed for row in rows))


def said_of(rows: Sequence[Row], wanted: BenchOptions) -> Iterator[str]:
    """Yield the notes that a reader of the tables needs."""
    first = rows[0].rounds[0]
    yield (
        f"medians over {wanted.rounds} round{'s' * (wanted.rounds > 1)} (± is half their range); "
        f"seconds are of the whole run; the first {first.warm_up} of {first.steps} steps are in no "
        f"other figure; MiB is the most that a rank had{' on its GPU' * first.on_gpu}"
    )
    if any(row.way.options.view == "local" for row in rows):
        yield "in the local view each rank trains on its share, as with DDP by hand"


def tell(rows: Sequence[Row], notes: Sequence[str]) -> None:
    """Print all of it on stdout: tables, failed rows and notes."""
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    console.print(table("how fast", SPEED, [(row, speed(row, rows[0])) for row in rows]))
    shares = [(row, parts(row)) for row in rows if row.rounds]
    console.print(table("where the time of a step goes", (*PARTS, "MiB"), shares))
    for row in rows:
        if row.failed:
            print("\n".join([f"{PREFIX} {row.way.title} failed:", *row.failed]))
    for line in notes:
        print(f"{PREFIX} {line}")


def table(title: str, columns: Sequence[str], rows: Sequence[tuple[Row, Sequence[str]]]) -> Table:
    """Make a table, with what rows are called to the left and figures to the right."""
    made = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, title_style="bold"
    )
    for name in ("", "ranks", *columns):
        made.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row, cells in rows:
        text = row.way.label
        label = text if len(text) <= LABEL else "…" + text[1 - LABEL :]
        made.add_row(escape(label), str(row.way.ranks), *cells)
    return made


def speed(row: Row, plain: Row) -> list[str]:
    """Return how fast a row is, in cells."""
    if not row.rounds:
        return ["failed"]
    gained = row.speed_up(plain) or 0.0
    figures = f"{row.of('batch'):g}", f"{row.of('seconds'):.1f}", f"{row.of('rate'):.0f}"
    times = f"{row.spread:.0%}", f"{1000 * row.of('median'):.2f}"
    return [*figures, *times, f"{gained:.2f}"]


def parts(row: Row) -> list[str]:
    """Return where the time of a row goes, and how much memory it takes, in cells."""
    return [f"{row.of(name):.0%}" for name in PARTS] + [f"{row.memory / 2**20:.0f}"]
