"""The commands: each parses its options and returns the function that does the work."""

from __future__ import annotations

from typing import Annotated

import typer

from autoddp.cli.help import USAGE_ERROR, examples, misplaced_option
from autoddp.cli.parameters import Action, GetScript, app, command_of
from autoddp.options import Options
from autoddp.options.parsing import Values, check_no_run, integer, split
from autoddp.options.row import BENCH, RUN, VERIFY

INTEGER, NUMBERS, PATH = "INTEGER", "INTEGER,INTEGER", "PATH"
Steps = Annotated[
    str | None,
    typer.Option(metavar=INTEGER, help="End each run after this number of optimizer steps."),
]
Json = Annotated[str | None, typer.Option(metavar=PATH, help="A JSON file for the results.")]


@command_of(RUN)
def run(
    script: GetScript,
    shared: Values,
) -> Action:
    """Run SCRIPT on N processes, with the result of one. All arguments after SCRIPT are its own.

    SCRIPT is a file, or with -m a module.

    Each option has an environment variable: AUTODDP_HANG_TIMEOUT=60 is --hang-timeout 60, and
    AUTODDP_QUIET=1 is --quiet. Options take precedence over variables.
    """
    options, target = Options(**shared), script()

    def action() -> int:
        from autoddp import launch

        if options.record is not None:
            from autoddp.tools.record.script import recorded

            code = launch.run(recorded(target, options, options.record), options)
        else:
            code = launch.run(target, options)
        hint = misplaced_option(target.name, target.args)
        # a script that does not parse its arguments has run on one rank, without an error
        ignored = options.nproc is None and hint.startswith("--nproc ")
        if hint and (code == USAGE_ERROR or ignored):
            launch.say(options, hint)
        return code

    return action


@command_of(VERIFY)
def verify(
    script: GetScript,
    shared: Values,
    *,
    nproc: Annotated[
        str,
        typer.Option(
            "-n",
            "--nproc",
            metavar=INTEGER,
            help="The number of ranks to compare with one process.",
        ),
    ] = "2",
    steps: Steps = None,
    float64: Annotated[
        bool,
        typer.Option(
            "--float64",
            help="Compare in float64, too, even if float32 is equal.",
        ),
    ] = False,
    json: Json = None,
) -> Action:
    """Run SCRIPT on 1 process and on N, in copies of this folder: 0 if equal, 1 if not."""
    from autoddp.tools.verify import command as verification
    from autoddp.tools.verify.verdict import VerifyOptions

    options = Options(nproc=integer("--nproc", nproc), **shared)
    target = script()
    last = None if steps is None else integer("--steps", steps)
    tool_options = VerifyOptions(steps=last, float64=float64, json=json)
    return lambda: verification.run(target, options, tool_options)


@command_of(BENCH)
def bench(
    script: GetScript,
    shared: Values,
    *,
    nproc: Annotated[
        list[str] | None,
        typer.Option(
            "-n",
            "--nproc",
            metavar=NUMBERS,
            help="The numbers of ranks, such as 1,2,4.",
            show_default="2, 4... up to the number of GPUs",
        ),
    ] = None,
    steps: Steps = None,
    rounds: Annotated[
        str, typer.Option(metavar=INTEGER, help="The number of runs for each number of ranks.")
    ] = "3",
    json: Json = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar=PATH, help="An image file for a plot of the speed-up and the ideal one."
        ),
    ] = None,
    recordings: Annotated[
        bool,
        typer.Option(
            "--recordings", help="Summarise folders of autoddp run --record; run nothing."
        ),
    ] = False,
) -> Action:
    """Time SCRIPT on 1 process and on ranks, in copies of this folder, and show where time goes."""
    from autoddp.tools.bench import command as benchmark

    if recordings:
        check_no_run(shared, nproc=nproc, steps=steps, rounds=rounds != "3")
    options = Options(**shared)
    target = script()
    tool_options = benchmark.BenchOptions(
        nproc=tuple(integer("--nproc", number) for number in split(nproc)),
        steps=None if steps is None else integer("--steps", steps),
        rounds=integer("--rounds", rounds),
        json=json,
        plot=plot,
    )
    if recordings:
        folders = (target.name, *target.args)
        return lambda: benchmark.summarise(folders, tool_options, options.quiet)
    return lambda: benchmark.run(target, options, tool_options)


@app.command(epilog=examples("patches"))
def patches(
    features: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FEATURE...]", help="Names of features; all by default."),
    ] = None,
) -> Action:
    """List the functions of torch and other packages that autoddp replaces, and why."""
    from autoddp import listing

    return lambda: listing.patches(features or [])


@app.command(epilog=examples("env"))
def env() -> Action:
    """Show versions, GPUs, backends and variables of a job, for bug reports."""
    from autoddp import listing

    return listing.env
