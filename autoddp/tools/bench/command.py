"""Run a script in all the ways that there are: how fast each is, and where the time goes."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process import devices
from autoddp.process.script import Script
from autoddp.report import PREFIX
from autoddp.tools.bench import guest, plot, remote
from autoddp.tools.bench.advice import advice
from autoddp.tools.bench.figures import Row, figures
from autoddp.tools.bench.remote import Host, Others
from autoddp.tools.bench.show import tell
from autoddp.tools.bench.variants import LOCAL, SCALED, Way, ways
from autoddp.tools.rehearse import picture, runs
from autoddp.tools.rehearse.log_tail import tail
from autoddp.tools.rehearse.parents import Parents
from autoddp.tools.rehearse.progress import Progress
from autoddp.tools.rehearse.runs import Left, Runner

NOT_RUN, SOME_FAILED = 2, 1  # exit codes
LEAST = 2  # steps: the first one is not measured
NO_LOADER = (
    "per-rank batches are left out: no DataLoader makes this script's batches, so none can grow"
)

NO_BATCH = "no batch was seen at all: a sample is a step"
SHARE = "per-rank rows are of the local view: what they print is of rank 0's share, its metrics too"


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


class NotRun(Exception):
    """The error that one process cannot run the script, or that there is nothing to measure."""

    def __init__(self, why: str, lines: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.lines = list(lines)


def run(
    script: Script, options: Options, wanted: BenchOptions, parents: Parents | None = None
) -> int:
    """Measure the script in all ways, and tell the result.

    Every run is in a private copy of the folder. Rows alternate: each round runs all of them once,
    so that what else the machine does falls on all. Threads are as `autoddp run` and `python` have
    them: one process has all cores, ranks share them. Rows of several nodes are run by all these
    nodes, as node 0 says, which has the tables.

    Args:
        script: The script to run.
        options: The options that the rows of all ranks share.
        wanted: What to measure, and what to make of it.
        parents: The processes to fork runs from, if they are there already; they are kept.

    Returns:
        0, or 1 if a row failed, 2 if one process cannot run the script.

    Raises:
        BadInput: The options do not allow it, and nothing was started; or the disk is full, or a
            node is to measure something else.
        AutoDDPError: A node has not come in time, or has ended.
    """
    check(script, options, wanted)
    if options.node_rank:
        return guest.take_part(script, options)
    with Others(options, remote.command(script)) as others:
        others.code = measured(script, options, wanted, parents, others)
    return others.code


def measured(
    script: Script, options: Options, wanted: BenchOptions, parents: Parents | None, others: Others
) -> int:
    """Measure on node 0, which is the only one as a rule, and return the exit code."""
    there = devices.there(os.environ)
    several = sorted(set(wanted.nnodes))
    found, notes = ways(options, counts(wanted.nproc, len(there.names)), there, several)
    progress = Progress(options.quiet, wanted.steps)
    with runs.stoppable():
        runner = Host(script, "times", progress, parents=parents or Parents(), others=others)
        try:
            others.meet(runner.root)
            with runs.enough_room(runner.root):
                bench = Bench(runner, found, wanted)
                bench.measure()
        except NotRun as error:
            print("\n".join([f"{PREFIX} {error}", *error.lines]), file=sys.stderr)
            return NOT_RUN
        finally:
            progress.close()
            if parents is None:
                runner.parents.close()
            runner.close()
    return finish(bench, notes, wanted, options.quiet, len(there.names))


def counts(given: Sequence[int], gpus: int) -> list[int]:
    """Return the numbers of ranks, each once; without any, 2, 4, ... as far as GPUs go."""
    if given:
        return sorted(set(given))
    return [2**k for k in range(1, max(2, gpus).bit_length())]


def check(script: Script, options: Options, wanted: BenchOptions) -> None:
    """Check that all that is asked for can be done.

    Raises:
        BadInput: The script or the options do not allow it.
    """
    runs.check(script, options, "bench")
    remote.check(options, wanted.nnodes)
    if wanted.plot is not None:
        picture.check(wanted.plot)


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
        for way in {row.way.ranks > 1: row.way for row in self.rows}.values():
            # both parents import torch at the same time
            self.runner.parent(way.options.nproc or 1, way.nodes)
        for number in range(1, self.wanted.rounds + 1):
            for row in list(self.rows):
                if row in self.rows and not row.failed:
                    self._run(row, f"round {number} of {self.wanted.rounds}: {row.way.title}")

    def _run(self, row: Row, name: str) -> None:
        way = row.way
        left = self.runner.run(
            name, way.options, steps=self.wanted.steps, changes=way.changes, environ=way.environ
        )
        try:
            self._take(row, left)
        finally:
            left.forget()

    def _take(self, row: Row, left: Left) -> None:
        steps, plain = len(left.steps.get(0, [])), row is self.rows[0]
        if plain:
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
            self.by_hand = left.ends[0].get("by hand") or 1
            self.rows = [row for row in self.rows if row.way.kind not in (LOCAL, SCALED)]
            self.notes = [NO_LOADER] if left.ends[0].get("by hand") else [NO_LOADER, NO_BATCH]


def finish(bench: Bench, notes: list[str], wanted: BenchOptions, quiet: bool, devices: int) -> int:
    """Write tables, advice, picture and JSON, and return the exit code."""
    rows, cores = bench.rows, len(os.sched_getaffinity(0))
    notes = [*notes, *bench.notes, *said_of(rows, wanted)]
    told = advice(rows, cores, devices, wanted.steps is None)
    if not quiet:
        tell(rows, notes, told)
    if wanted.plot is not None:
        plot.draw(wanted.plot, rows)
    if wanted.json is not None:
        data = {
            "script": bench.runner.script.name,
            "arguments": bench.runner.script.args,
            "cores": cores,
            "GPUs": devices,
            "steps": wanted.steps,
            "rounds": wanted.rounds,
            "rows": [row.data(rows[0]) for row in rows],
            "notes": notes,
            "advice": told,
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
    if wanted.steps is not None:
        lines.append(
            f"--steps {wanted.steps}: all rows end there, so that rows of larger batches saw "
            "more data"
        )
    if any(row.way.nodes > 1 for row in rows):
        lines.append("2x3 ranks are 3 on each of 2 nodes")
    if any(row.way.local for row in rows):
        lines.append(SHARE)
    return lines
