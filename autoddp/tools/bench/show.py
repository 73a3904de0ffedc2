"""What there is to show: three tables, within 100 columns, advice, a picture, and JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoddp.errors import BadInput
from autoddp.report import PREFIX
from autoddp.tools.bench import plot
from autoddp.tools.bench.advice import advice
from autoddp.tools.bench.figures import COMPUTING, LEAST, Row
from autoddp.tools.record.phases import GATHERING, GRADIENTS, LOADING

SOME_FAILED = 1  # the exit code
SHARE = "rows of the local view print what is of rank 0's share, its metrics too"
WIDTH = 100
PRINTED = "printed last"
TEXT = ("", PRINTED)
END = 48  # characters of the last printed line
LABEL = 22  # characters of what a row is called: a recording is by its folder


@dataclass(frozen=True)
class BenchOptions:
    """The options of `autoddp bench` that `autoddp run` has not."""

    nproc: tuple[int, ...] = ()
    steps: int | None = None
    rounds: int = 3
    json: str | None = None
    plot: str | None = None
    nnodes: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if min(self.nnodes) < 1:
            raise BadInput(f"--nnodes is {min(self.nnodes)}; a row is of at least 1 node")
        if self.steps is not None and self.steps < LEAST:
            raise BadInput(
                f"--steps is {self.steps}; it takes {LEAST} or more: the first is not measured"
            )
        if self.rounds < 1:
            raise BadInput(f"--rounds is {self.rounds}; each row is run at least once")
        folder = os.path.dirname(self.json or "")
        if folder and not os.path.isdir(folder):
            raise BadInput(f"--json is {self.json}, but there is no folder {folder}; make it first")


@dataclass(frozen=True)
class Machine:
    """The cores and GPUs of each node, by which figures are judged, if they are."""

    cores: int
    gpus: int
    advise: bool = True


def finish(
    about: tuple[str, Sequence[str]],
    rows: Sequence[Row],
    notes: Sequence[str],
    wanted: BenchOptions,
    quiet: bool,
    machine: Machine,
) -> int:
    """Write tables, advice, picture and JSON, and return the exit code."""
    notes = [*notes, *said_of(rows, wanted)]
    hints = advice(rows, machine.cores, machine.gpus) * machine.advise
    if not quiet:
        tell(rows, notes, hints)
    if wanted.plot is not None:
        plot.draw(wanted.plot, rows)
    if wanted.json is not None:
        data = {
            "script": about[0],
            "arguments": about[1],
            "cores": machine.cores,
            "GPUs": machine.gpus,
            "steps": wanted.steps,
            "rounds": wanted.rounds,
            "rows": [row.data(rows[0]) for row in rows],
            "notes": notes,
            "advice": hints,
        }
        Path(wanted.json).write_text(json.dumps(finite(data), indent=2))
    return SOME_FAILED if any(row.failed for row in rows) else 0


def finite(data: Any) -> Any:
    """Return data for JSON, which has no NaN and no infinity: null stands for them."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def said_of(rows: Sequence[Row], wanted: BenchOptions) -> list[str]:
    """Return the notes that a reader of the tables needs."""
    first = rows[0].rounds[0]
    lines = [
        f"medians over {wanted.rounds} round{'s' * (wanted.rounds > 1)} (± is half their range); "
        f"the first {first.warm_up} of {first.steps} steps are not measured; "
        "MiB is the most that a rank had"
        + (" on its GPU" if first.on_gpu else " in memory")
        + "; loss is the mean of the last tenth"
    ]
    if any(row.way.nodes > 1 for row in rows):
        lines.append("2x3 ranks are 3 on each of 2 nodes")
    if any(row.way.local for row in rows):
        lines.append(SHARE)
    return lines


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
        about = label(row), row.way.count
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
            made.add_row(label(row), row.way.count, *shares, f"{row.memory / 2**20:.0f}")
    return made


def results(rows: Sequence[Row]) -> Table:
    """Make the table of what comes out: steps, loss, and the last printed line."""
    made = table("what comes out", ("", "ranks", "steps", "loss", PRINTED))
    for row in rows:
        if row.rounds:
            loss = "" if row.loss is None else f"{row.loss:.4g}"
            steps, printed = f"{row.of('steps'):g}", escape(ending(row.rounds[-1].printed))
            made.add_row(label(row), row.way.count, steps, loss, printed)
    return made


def label(row: Row) -> str:
    """Return what a row is called, no longer than the figures beside it leave room for."""
    return escape(ending(row.way.label, LABEL))


def ending(line: str, most: int = END) -> str:
    """Cut a long line to its end."""
    return line if len(line) <= most else "…" + line[1 - most :]
