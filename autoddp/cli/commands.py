"""The commands: each reads its options and names the function that does the work."""

from __future__ import annotations

from typing import Annotated

import typer

from autoddp.cli import hints
from autoddp.cli.help import examples
from autoddp.cli.parameters import Act, Naming, app, command_of
from autoddp.options import Options
from autoddp.options.given import Given, check_no_run, split, whole
from autoddp.options.row import BENCH, RUN, VERIFY

INTEGER, NUMBERS, PATH = "INTEGER", "INTEGER,INTEGER", "PATH"
Steps = Annotated[
    str | None, typer.Option(metavar=INTEGER, help="End each run after so many optimizer steps.")
]
Json = Annotated[
    str | None, typer.Option(metavar=PATH, help="A file to which the results are written, as JSON.")
]


@command_of(RUN)
def run(
    script: Naming,
    shared: Given,
) -> Act:
    """Run SCRIPT on N processes, with the result of one. Everything after SCRIPT is its own.

    SCRIPT is a file, or with -m a module.

    A variable stands for each option: AUTODDP_HANG_TIMEOUT=60 is --hang-timeout 60, and
    AUTODDP_QUIET=1 is --quiet. What is typed wins.
    """
    options, what = Options(**shared), script()

    def act() -> int:
        from autoddp import launch

        if options.record is not None:
            from autoddp.tools.record.script import recorded

            ended = launch.run(recorded(what, options, options.record), options)
        else:
            ended = launch.run(what, options)
        hint = hints.behind(what.name, what.args)
        # a script that parses nothing takes whatever stands there, and has run on one rank
        unheard = options.nproc is None and hint.startswith("--nproc ")
        if hint and (ended == hints.PARSERS or unheard):
            launch.say(options, hint)
        return ended

    return act


@command_of(VERIFY)
def verify(
    script: Naming,
    shared: Given,
    *,
    nproc: Annotated[
        str,
        typer.Option(
            "-n",
            "--nproc",
            metavar=INTEGER,
            help="The number of ranks that are compared with one process.",
        ),
    ] = "2",
    steps: Steps = None,
    float64: Annotated[
        bool,
        typer.Option(
            "--float64",
            help="Run both in float64, too, even where float32 is equal.",
        ),
    ] = False,
    json: Json = None,
) -> Act:
    """Run SCRIPT on 1 process and on N, in copies of this folder: 0 if equal, 1 if not."""
    from autoddp.tools.verify import command as verification
    from autoddp.tools.verify.verdict import VerifyOptions

    options = Options(nproc=whole("--nproc", nproc), **shared)
    what = script()
    ends = None if steps is None else whole("--steps", steps)
    wanted = VerifyOptions(steps=ends, float64=float64, json=json)
    return lambda: verification.run(what, options, wanted)


@command_of(BENCH)
def bench(
    script: Naming,
    shared: Given,
    *,
    nproc: Annotated[
        list[str] | None,
        typer.Option(
            "-n",
            "--nproc",
            metavar=NUMBERS,
            help="The numbers of ranks, as 1,2,4.",
            show_default="2, 4... up to the number of GPUs",
        ),
    ] = None,
    steps: Steps = None,
    rounds: Annotated[
        str, typer.Option(metavar=INTEGER, help="How often each number of ranks is run.")
    ] = "3",
    json: Json = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar=PATH, help="An image file in which the speed-up is drawn against the ideal."
        ),
    ] = None,
    recordings: Annotated[
        bool,
        typer.Option(
            "--recordings", help="Summarise folders of autoddp run --record, and run nothing."
        ),
    ] = False,
) -> Act:
    """Run SCRIPT on one process and on ranks, in copies of this folder: how fast it is, and why."""
    from autoddp.tools.bench import command as benchmark

    if recordings:
        check_no_run(shared, nproc=nproc, steps=steps, rounds=rounds != "3")
    options = Options(**shared)
    what = script()
    wanted = benchmark.BenchOptions(
        nproc=tuple(whole("--nproc", number) for number in split(nproc)),
        steps=None if steps is None else whole("--steps", steps),
        rounds=whole("--rounds", rounds),
        json=json,
        plot=plot,
    )
    if recordings:
        folders = (what.name, *what.args)
        return lambda: benchmark.summarise(folders, wanted, options.quiet)
    return lambda: benchmark.run(what, options, wanted)


@app.command(epilog=examples("patches"))
def patches(
    features: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FEATURE...]", help="Names of features; without any, all."),
    ] = None,
) -> Act:
    """List what is replaced in torch and elsewhere, and why."""
    from autoddp import listing

    return lambda: listing.patches(features or [])


@app.command(epilog=examples("env"))
def env() -> Act:
    """Show versions, GPUs, backends and the job's variables, for bug reports."""
    from autoddp import listing

    return listing.env
