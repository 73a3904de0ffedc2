"""The command line: read options, call one function, set the exit code."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import Field
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch import hash_seed, recipes
from autoddp.options import ROWS, Options, table
from autoddp.options.given import Given, check_no_run, read, split, whole
from autoddp.options.row import BENCH, RUN, VERIFY, OptionRow, flag
from autoddp.report import PREFIX, stdout_is_read

if TYPE_CHECKING:
    from autoddp.process.script import Script

Act = Callable[[], int]  # what a command returns: it is called outside of typer's own frames
Command = Callable[..., Act]
Naming = Callable[[], Any]  # gives the `Script`, or says that none was given

RECORDINGS = "[OPTIONS] --recordings A B"

app = typer.Typer(
    help="Run an unmodified single-GPU PyTorch script on N processes.",
    add_completion=False,
    rich_markup_mode=None,
)


def command_of(taker: str) -> Callable[[Command], Command]:
    """Make a command of a function, which takes the table's options, too.

    The function is given how to name its script, the values of those options of the table that
    it does not declare itself, and its own options as they were typed.
    """

    def register(function: Command) -> Command:
        declared = inspect.signature(function, eval_str=True).parameters.values()
        own = [p for p in declared if p.kind is inspect.Parameter.KEYWORD_ONLY]
        rows = [(f, row) for f, row in table(taker) if f.name not in {p.name for p in own}]

        def called(script: str | None, args: list[str] | None, **given: Any) -> Act:
            shared: Given = {}
            for field, _ in rows:
                shared |= read(field, given.pop(field.name))
            wanted = RECORDINGS if given.get("recordings") else "[OPTIONS] SCRIPT [ARGS...]"
            usage = f"{taker} {wanted}"
            return function(lambda: named(usage, script, args, shared["module"]), shared, **given)

        made = [SCRIPT, ARGS, *own, *(parameter(field, row) for field, row in rows)]
        called.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]  # typer reads it
        called.__annotations__, called.__doc__ = {}, function.__doc__
        app.command(context_settings={"allow_interspersed_args": False}, name=taker)(called)
        return function

    return register


def argument(name: str, kind: Any, says: str) -> inspect.Parameter:
    """Declare what stands without a flag."""
    taken = Annotated[kind, typer.Argument(help=says)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=taken)


SCRIPT = argument("script", str | None, "A file, or with -m a module.")
ARGS = argument("args", list[str] | None, "The script's own.")


def parameter(field: Field[Any], row: OptionRow) -> inspect.Parameter:
    """Declare an option; numbers come as text, so that a wrong one is refused in our words."""
    kind, default = str(field.type), field.default
    flags = row.flags or (flag(field.name),)
    taken: Any = bool if kind == "bool" else str if default is not None else str | None
    if kind.startswith("tuple"):
        taken, default = list[str] | None, None
    shown = "|".join(row.words) or ("N" if kind.startswith("int") else "TEXT")
    says = typer.Option(
        *flags,
        help=row.says.replace("`", "") + ".",
        metavar=None if kind == "bool" else shown,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=str(default) if kind == "int" else default,
        annotation=Annotated[taken, says],
    )


def named(usage: str, script: str | None, args: list[str] | None, module: bool) -> Script:
    """Name the script that is to run, or the folders that are to be read.

    Raises:
        BadInput: None was given.
    """
    if script is None:
        many = usage.endswith(RECORDINGS)
        what = "recordings given; say which" if many else "script given; say which one"
        raise BadInput(f"no {what}: autoddp {usage}")
    from autoddp.process.script import Script

    return Script(script, tuple(args or ()), module)


@command_of(RUN)
def run(script: Naming, shared: Given) -> Act:
    """Run SCRIPT on N processes, with the result of one. Everything after SCRIPT is its own."""
    options, what = Options(**shared), script()
    from autoddp import launch

    where = options.record
    if where is None:
        return lambda: launch.run(what, options)
    from autoddp.tools.record.script import recorded

    return lambda: launch.run(*recorded(what, options, where))


@command_of(VERIFY)
def verify(
    script: Naming,
    shared: Given,
    *,
    nproc: Annotated[
        str, typer.Option("-n", "--nproc", help="How many ranks are compared with 1.")
    ] = "2",
    steps: Annotated[
        str | None, typer.Option(help="End both after so many optimizer steps.")
    ] = None,
    float64: Annotated[
        bool, typer.Option("--float64", help="Also in float64: no rounding to allow for.")
    ] = False,
    plot: Annotated[str | None, typer.Option(help="Draw both loss curves there.")] = None,
    json: Annotated[str | None, typer.Option(help="Write what was found there, as JSON.")] = None,
    draws: Annotated[
        str, typer.Option(help=f"Random draws ({', '.join(ROWS['draws'].words)}).")
    ] = "whole",
    recordings: Annotated[
        bool, typer.Option("--recordings", help="Compare two folders of run --record instead.")
    ] = False,
) -> Act:
    """Run SCRIPT on 1 process and on N, in copies of this folder: 0 if equal, 1 if not."""
    from autoddp.tools.verify.verdict import VerifyOptions

    if recordings:
        check_no_run(shared, nproc=nproc != "2", float64=float64, draws=draws != "whole")
    options = Options(nproc=whole("--nproc", nproc), draws=draws, **shared)
    what = script()
    ends = None if steps is None else whole("--steps", steps)
    wanted = VerifyOptions(ends, float64, plot, json)
    if recordings:
        from autoddp.tools.verify.recordings import run

        return lambda: run((what.name, *what.args), wanted, options.quiet)
    from autoddp.tools.verify import command as verification

    return lambda: verification.run(what, options, wanted)


@command_of(BENCH)
def bench(
    script: Naming,
    shared: Given,
    *,
    nproc: Annotated[
        list[str] | None,
        typer.Option("-n", "--nproc", help="Numbers of ranks: 1,2,4; else 2, 4... as GPUs."),
    ] = None,
    nnodes: Annotated[
        list[str] | None, typer.Option(help="Numbers of nodes: 1,2; started on each.")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="End each run after so many optimizer steps.")
    ] = None,
    rounds: Annotated[str, typer.Option(help="How often each row is run.")] = "3",
    json: Annotated[str | None, typer.Option(help="Write all figures there, as JSON.")] = None,
    plot: Annotated[str | None, typer.Option(help="Draw speed-up against ideal there.")] = None,
    recordings: Annotated[
        bool, typer.Option("--recordings", help="Summarise folders of run --record instead.")
    ] = False,
) -> Act:
    """Run SCRIPT on one process and on ranks, in copies of this folder: how fast it is, and why."""
    from autoddp.tools.bench.show import BenchOptions

    if recordings:
        check_no_run(shared, nproc=nproc, nnodes=nnodes, steps=steps, rounds=rounds != "3")
    nodes = tuple(whole("--nnodes", number) for number in split(nnodes)) or (1,)
    options = Options(nnodes=max(nodes), **shared)
    what = script()
    wanted = BenchOptions(
        tuple(whole("--nproc", number) for number in split(nproc)),
        None if steps is None else whole("--steps", steps),
        whole("--rounds", rounds),
        json,
        plot,
        nodes,
    )
    if recordings:
        from autoddp.tools.bench.recordings import run

        return lambda: run((what.name, *what.args), wanted, options.quiet)
    from autoddp.tools.bench import command as benchmark

    return lambda: benchmark.run(what, options, wanted)


@app.command(context_settings={"allow_interspersed_args": False}, name="launch-script")
def launch_script(
    *,
    script: Annotated[str | None, typer.Argument(help="A file, or with -m a module.")] = None,
    args: Annotated[list[str] | None, typer.Argument(help="The script's own.")] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="A batch script, for sbatch.")] = False,
    k8s: Annotated[bool, typer.Option("--k8s", help="A PyTorchJob, for kubectl.")] = False,
    mpi: Annotated[
        bool, typer.Option("--mpi", help="A command line of Open MPI's mpirun.")
    ] = False,
    nnodes: Annotated[str, typer.Option(help="Nodes of the job.")] = "1",
    nproc: Annotated[str, typer.Option("-n", "--nproc", help="Ranks on each node.")] = "1",
    image: Annotated[str, typer.Option(help="The containers' image, for --k8s.")] = recipes.IMAGE,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as python -m.")] = False,
) -> Act:
    """Print what a scheduler is given to run SCRIPT on several ranks or nodes."""
    if script is None:
        raise BadInput(
            "no script given; say which one: autoddp launch-script --slurm SCRIPT [ARGS...]"
        )
    kinds = [name for name, given in (("slurm", slurm), ("k8s", k8s), ("mpi", mpi)) if given]
    command = (*(("-m",) if module else ()), script, *(args or ()))
    wanted = recipes.RecipeOptions(
        command, whole("--nnodes", nnodes), whole("--nproc", nproc), image
    )
    text = recipes.written(kinds, wanted)
    return lambda: print(text, end="") or 0


@app.command()
def patches() -> Act:
    """List what is replaced in torch and elsewhere, and why."""
    from autoddp import listing

    return listing.patches


@app.command()
def env() -> Act:
    """Show versions, GPUs, backends and the job's variables: for bug reports."""
    from autoddp import listing

    return listing.env


def main() -> NoReturn:
    """Run the console script `autoddp`."""
    hash_seed.settle(sys.argv[1:], os.environ)
    try:
        code = command(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        if stdout_is_read():  # another pipe broke
            raise
        os._exit(128 + signal.SIGPIPE)
    if "autoddp.launch.agent" in sys.modules:
        # ranks ran, in forks: nothing here is a user's, and to tear torch down takes half a second
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def command(arguments: list[str]) -> int:
    """Do what the arguments say and return the exit code: 2 and one line if it cannot be done."""
    try:
        act = parse(arguments)
        return act() if callable(act) else act or 0
    except AutoDDPError as error:
        print(f"{PREFIX} {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1


def parse(arguments: list[str]) -> Act | int | None:
    """Return the act that the arguments ask for; or the exit code where help was asked for.

    Raises:
        BadInput: An unknown command or option.
    """
    usage_error: type[Any] = typer.BadParameter.__mro__[1]  # of the click that this typer uses
    parser = typer.main.get_command(app)
    try:
        answer: Any = parser.main(arguments or ["--help"], "autoddp", standalone_mode=False)
    except usage_error as error:
        raise BadInput(f"{error.format_message()} See autoddp --help") from None
    return answer
