"""Run a script in all the ways that there are: how fast each is, and where the time goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from autoddp.options import Options
from autoddp.process import devices
from autoddp.process.script import Script
from autoddp.report import PREFIX
from autoddp.tools.bench import guest, remote
from autoddp.tools.bench.figures import LEAST, Row, figures
from autoddp.tools.bench.remote import Host, Others
from autoddp.tools.bench.show import BenchOptions, Machine, finish
from autoddp.tools.bench.variants import LOCAL, Way, ways
from autoddp.tools.rehearse import picture, runs
from autoddp.tools.rehearse.log_tail import tail
from autoddp.tools.rehearse.parents import Parents
from autoddp.tools.rehearse.progress import Progress
from autoddp.tools.rehearse.runs import Left, Runner

NOT_RUN = 2  # the exit code
NO_LOADER = (
    "the local view is left out: no DataLoader makes this script's batches, so none are shared out"
)

NO_BATCH = "no batch was seen at all: a sample is a step"


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
    machine = Machine(len(os.sched_getaffinity(0)), len(there.names))
    about = script.name, script.args
    return finish(about, bench.rows, [*notes, *bench.notes], wanted, options.quiet, machine)


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
            self.rows = [row for row in self.rows if row.way.kind != LOCAL]
            self.notes = [NO_LOADER] if left.ends[0].get("by hand") else [NO_LOADER, NO_BATCH]
