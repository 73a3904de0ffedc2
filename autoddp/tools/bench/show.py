"""Three tables, within 100 columns, and what they advise."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoddp.report import PREFIX
from autoddp.tools.bench.figures import COMPUTING, Row
from autoddp.tools.record.phases import GATHERING, GRADIENTS, LOADING

WIDTH = 100
PRINTED = "printed last"
TEXT = ("", PRINTED)
END = 48  # characters of the last printed line


def tell(rows: Sequence[Row], notes: Sequence[str], advice: Sequence[str]) -> None:
    """Print all of it on stdout: tables, failed rows, notes and advice."""
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    console.print(speed(rows))
    console.print(parts(rows))
    console.print(results(rows))
    for row in rows:
        if row.failed:
            print("\n".join([f"{PREFIX} {row.way.title} failed:", *row.failed]))
    for line in (*notes, *(f"advice: {line}" for line in advice)):
        print(f"{PREFIX} {line}")


def table(title: str, columns: Sequence[str]) -> Table:
    """Make an empty table, with text to the left and figures to the right."""
    made = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, title_style="bold"
    )
    for name in columns:
        made.add_column(name, justify="left" if name in TEXT else "right", no_wrap=True)
    return made


def speed(rows: Sequence[Row]) -> Table:
    """Make the table of how fast the rows are."""
    columns = (
        "",
        "ranks",
        "batch",
        "samples/s",
        "±",
        "step ms",
        "p95 ms",
        "speed-up",
        "efficiency",
    )
    made = table("how fast", columns)
    for row in rows:
        about = row.way.kind, row.way.count
        if not row.rounds:
            made.add_row(*about, "failed")
            continue
        gained = row.speed_up(rows[0])
        times = (f"{1000 * row.of(name):.2f}" for name in ("median", "p95"))
        gains = ("", "") if gained is None else (f"{gained:.2f}", f"{gained / row.way.devices:.0%}")
        figures = f"{row.of('batch'):g}", f"{row.of('rate'):.0f}", f"{row.spread:.0%}"
        made.add_row(*about, *figures, *times, *gains)
    return made


def parts(rows: Sequence[Row]) -> Table:
    """Make the table of where the time goes, and how much memory it takes."""
    names = LOADING, COMPUTING, GATHERING, GRADIENTS
    made = table("where the time of a step goes", ("", "ranks", *names, "MiB"))
    for row in rows:
        if row.rounds:
            shares = (f"{row.of(name):.0%}" for name in names)
            made.add_row(row.way.kind, row.way.count, *shares, f"{row.memory / 2**20:.0f}")
    return made


def results(rows: Sequence[Row]) -> Table:
    """Make the table of what comes out: steps, loss, and the last printed line."""
    made = table("what comes out", ("", "ranks", "steps", "loss", PRINTED))
    for row in rows:
        if row.rounds:
            loss = "" if row.loss is None else f"{row.loss:.4g}"
            steps, printed = f"{row.of('steps'):g}", escape(ending(row.rounds[-1].printed))
            made.add_row(row.way.kind, row.way.count, steps, loss, printed)
    return made


def ending(line: str) -> str:
    """Cut a long line to its end."""
    return line if len(line) <= END else "…" + line[1 - END :]
