"""The command line: read options, call one function, set the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, NoReturn

import typer

from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch import hash_seed, recipes
from autoddp.options import CHOICES, Options, span
from autoddp.report import PREFIX

Act = Callable[[], int]  # what a command returns: it is called outside of typer's own frames

app = typer.Typer(
    help="Run an unmodified single-GPU PyTorch script on N processes.",
    add_completion=False,
    rich_markup_mode=None,
)


def among(name: str, says: str) -> str:
    """The help of an option that takes one of a few words."""
    return f"{says}: {', '.join(CHOICES[name])}."


@app.command(context_settings={"allow_interspersed_args": False}, name="run")
def run(
    *,
    script: Annotated[str | None, typer.Argument(help="A file, or with -m a module.")] = None,
    args: Annotated[list[str] | None, typer.Argument(help="The script's own.")] = None,
    nproc: Annotated[
        str | None,
        typer.Option("-n", "--nproc", "--nproc-per-node", help="Ranks on this node; else one per GPU, or 1."),
    ] = None,
    nnodes: Annotated[str, typer.Option(help="Nodes of the job; MIN:MAX: they come and go.")] = "1",
    node_rank: Annotated[str, typer.Option(help="This node's number, from 0.")] = "0",
    master_addr: Annotated[str | None, typer.Option(help="The address of node 0.")] = None,
    master_port: Annotated[str | None, typer.Option(help="A free port there; 29500.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as python -m.")] = False,
    gpus_per_rank: Annotated[
        str, typer.Option(help="GPUs that a rank sees, for a model over several.")
    ] = "1",
    backend: Annotated[str, typer.Option(help=among("backend", "Who talks"))] = "auto",
    view: Annotated[str, typer.Option(help=among("view", "What the script sees"))] = "global",
    batch: Annotated[str, typer.Option(help=among("batch", "Whose batch size"))] = "global",
    scale_lr: Annotated[str, typer.Option(help=among("scale_lr", "Learning rate"))] = "none",
    batchnorm: Annotated[str, typer.Option(help=among("batchnorm", "Statistics"))] = "exact",
    loading: Annotated[str, typer.Option(help=among("loading", "What a rank loads"))] = "auto",
    draws: Annotated[str, typer.Option(help=among("draws", "Random draws"))] = "auto",
    own_ddp: Annotated[str, typer.Option(help=among("own_ddp", "Distributed by itself"))] = "auto",
    average_every: Annotated[
        str | None, typer.Option(help="Average weights, not gradients: after so many steps, or epoch.")
    ] = None,
    average_momentum: Annotated[bool, typer.Option("--average-momentum", help="That, too.")] = False,
    compress: Annotated[str, typer.Option(help="Gradients: none, fp16, bf16, powersgd[:RANK].")] = "none",
    shard_optimizer: Annotated[bool, typer.Option("--shard-optimizer", help="Its state, by ranks.")] = False,
    disable: Annotated[
        list[str] | None, typer.Option(help="Features to leave out; see autoddp patches.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse rather than guess.")] = False,
    report: Annotated[str | None, typer.Option(help="Write all decisions there, as JSON.")] = None,
    log_dir: Annotated[str | None, typer.Option(help="Where ranks above 0 write.")] = None,
    grace: Annotated[str, typer.Option(help="Seconds to end in, once a rank has after a signal.")] = "30",
    max_restarts: Annotated[str, typer.Option(help="How often a job that failed is run again.")] = "0",
    hang_timeout: Annotated[str, typer.Option(help="Seconds until a job that hangs is ended.")] = "30",
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say more.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Say nothing.")] = False,
) -> Act:
    """Run SCRIPT on N processes, with the result of one. Everything after SCRIPT is its own."""
    options = Options(
        nproc=None if nproc is None else whole("--nproc", nproc),
        **span("--nnodes", nnodes),
        node_rank=whole("--node-rank", node_rank),
        master_addr=master_addr,
        master_port=None if master_port is None else whole("--master-port", master_port),
        module=module,
        gpus_per_rank=whole("--gpus-per-rank", gpus_per_rank),
        backend=backend,
        view=view,
        batch=batch,
        scale_lr=scale_lr,
        batchnorm=batchnorm,
        loading=loading,
        draws=draws,
        own_ddp=own_ddp,
        average_every=average_every,
        average_momentum=average_momentum,
        compress=compress,
        shard_optimizer=shard_optimizer,
        disable=split(disable),
        strict=strict,
        report=report,
        log_dir=log_dir,
        grace=whole("--grace", grace),
        max_restarts=whole("--max-restarts", max_restarts),
        hang_timeout=whole("--hang-timeout", hang_timeout),
        verbose=verbose,
        quiet=quiet,
    )
    if script is None:
        raise BadInput("no script given; say which one: autoddp run [OPTIONS] SCRIPT [ARGS...]")
    from autoddp import launch
    from autoddp.process.script import Script

    what = Script(script, tuple(args or ()), module)
    return lambda: launch.run(what, options)


@app.command(context_settings={"allow_interspersed_args": False})
def verify(
    *,
    script: Annotated[str | None, typer.Argument(help="A file, or with -m a module.")] = None,
    args: Annotated[list[str] | None, typer.Argument(help="The script's own.")] = None,
    nproc: Annotated[str, typer.Option("-n", "--nproc", help="How many ranks are compared with 1.")] = "2",
    steps: Annotated[str | None, typer.Option(help="End both after so many optimizer steps.")] = None,
    float64: Annotated[
        bool, typer.Option("--float64", help="Also in float64: no rounding to allow for.")
    ] = False,
    plot: Annotated[str | None, typer.Option(help="Draw both loss curves there.")] = None,
    json: Annotated[str | None, typer.Option(help="Write what was found there, as JSON.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as python -m.")] = False,
    backend: Annotated[str, typer.Option(help=among("backend", "Who talks"))] = "auto",
    batchnorm: Annotated[str, typer.Option(help=among("batchnorm", "Statistics"))] = "exact",
    loading: Annotated[str, typer.Option(help=among("loading", "What a rank loads"))] = "auto",
    draws: Annotated[str, typer.Option(help=among("draws", "Random draws"))] = "whole",
    own_ddp: Annotated[str, typer.Option(help=among("own_ddp", "Distributed by itself"))] = "auto",
    disable: Annotated[
        list[str] | None, typer.Option(help="Features to leave out; see autoddp patches.")
    ] = None,
    hang_timeout: Annotated[str, typer.Option(help="Seconds until ranks that hang are ended.")] = "30",
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="The exit code says it all.")] = False,
) -> Act:
    """Run SCRIPT on 1 process and on N, in copies of this folder: 0 if the numbers are equal, 1 if not."""
    options = Options(
        nproc=whole("--nproc", nproc),
        module=module,
        backend=backend,
        batchnorm=batchnorm,
        loading=loading,
        draws=draws,
        own_ddp=own_ddp,
        disable=split(disable),
        hang_timeout=whole("--hang-timeout", hang_timeout),
        quiet=quiet,
    )
    if script is None:
        raise BadInput("no script given; say which one: autoddp verify [OPTIONS] SCRIPT [ARGS...]")
    from autoddp.process.script import Script
    from autoddp.tools.verify import command as verification

    wanted = verification.VerifyOptions(
        None if steps is None else whole("--steps", steps), float64, plot, json
    )
    what = Script(script, tuple(args or ()), module)
    return lambda: verification.run(what, options, wanted)


@app.command(context_settings={"allow_interspersed_args": False})
def bench(
    *,
    script: Annotated[str | None, typer.Argument(help="A file, or with -m a module.")] = None,
    args: Annotated[list[str] | None, typer.Argument(help="The script's own.")] = None,
    nproc: Annotated[
        list[str] | None, typer.Option("-n", "--nproc", help="Numbers of ranks: 1,2,4; else 2, 4... as GPUs.")
    ] = None,
    nnodes: Annotated[list[str] | None, typer.Option(help="Numbers of nodes: 1,2; started on each.")] = None,
    node_rank: Annotated[str, typer.Option(help="This node's number, from 0.")] = "0",
    master_addr: Annotated[str | None, typer.Option(help="The address of node 0.")] = None,
    master_port: Annotated[str | None, typer.Option(help="A free port there; 29500.")] = None,
    steps: Annotated[str | None, typer.Option(help="End each run after so many optimizer steps.")] = None,
    rounds: Annotated[str, typer.Option(help="How often each row is run.")] = "3",
    json: Annotated[str | None, typer.Option(help="Write all figures there, as JSON.")] = None,
    plot: Annotated[str | None, typer.Option(help="Draw speed-up against ideal there.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as python -m.")] = False,
    backend: Annotated[str, typer.Option(help=among("backend", "Who talks"))] = "auto",
    loading: Annotated[str, typer.Option(help=among("loading", "What a rank loads"))] = "auto",
    draws: Annotated[str, typer.Option(help=among("draws", "Random draws"))] = "auto",
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No tables.")] = False,
) -> Act:
    """Run SCRIPT on one process and on ranks, in copies of this folder: how fast, and where time goes."""
    nodes = tuple(whole("--nnodes", number) for number in split(nnodes)) or (1,)
    node = whole("--node-rank", node_rank)
    port = None if master_port is None else whole("--master-port", master_port)
    place = Options(nnodes=max(nodes), node_rank=node, master_addr=master_addr, master_port=port)
    options = replace(place, module=module, backend=backend, loading=loading, draws=draws, quiet=quiet)
    if script is None:
        raise BadInput("no script given; say which one: autoddp bench [OPTIONS] SCRIPT [ARGS...]")
    from autoddp.process.script import Script
    from autoddp.tools.bench import command as benchmark

    wanted = benchmark.BenchOptions(
        tuple(whole("--nproc", number) for number in split(nproc)),
        None if steps is None else whole("--steps", steps),
        whole("--rounds", rounds),
        json,
        plot,
        nodes,
    )
    what = Script(script, tuple(args or ()), module)
    return lambda: benchmark.run(what, options, wanted)


@app.command(context_settings={"allow_interspersed_args": False}, name="launch-script")
def launch_script(
    *,
    script: Annotated[str | None, typer.Argument(help="A file, or with -m a module.")] = None,
    args: Annotated[list[str] | None, typer.Argument(help="The script's own.")] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="A batch script, for sbatch.")] = False,
    k8s: Annotated[bool, typer.Option("--k8s", help="A PyTorchJob, for kubectl.")] = False,
    mpi: Annotated[bool, typer.Option("--mpi", help="A command line of Open MPI's mpirun.")] = False,
    nnodes: Annotated[str, typer.Option(help="Nodes of the job.")] = "1",
    nproc: Annotated[str, typer.Option("-n", "--nproc", help="Ranks on each node.")] = "1",
    image: Annotated[str, typer.Option(help="The containers' image, for --k8s.")] = recipes.IMAGE,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as python -m.")] = False,
) -> Act:
    """Print what a scheduler is given to run SCRIPT on several ranks or nodes."""
    if script is None:
        raise BadInput("no script given; say which one: autoddp launch-script --slurm SCRIPT [ARGS...]")
    kinds = [name for name, given in (("slurm", slurm), ("k8s", k8s), ("mpi", mpi)) if given]
    command = (*(("-m",) if module else ()), script, *(args or ()))
    wanted = recipes.RecipeOptions(command, whole("--nnodes", nnodes), whole("--nproc", nproc), image)
    text = recipes.written(kinds, wanted)
    return lambda: print(text, end="") or 0


def split(given: list[str] | None) -> tuple[str, ...]:
    """The names in an option that takes several, apart or with commas."""
    return tuple(name for some in given or () for name in some.split(",") if name)


def whole(name: str, text: str) -> int:
    """Read a whole number.

    Raises:
        BadInput: It is none.
    """
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"{name} is {text!r}; it takes a whole number") from None


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
    """The console script `autoddp`."""
    hash_seed.settle(sys.argv[1:], os.environ)
    code = command(sys.argv[1:])
    if "autoddp.launch.agent" in sys.modules:
        # ranks ran, in forks: nothing here is a user's, and to tear torch down takes half a second
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def command(arguments: list[str]) -> int:
    """Do what the arguments say; the exit code. What cannot be done ends in one line and 2."""
    try:
        act = parse(arguments)
        return act() if callable(act) else act or 0
    except AutoDDPError as error:
        print(f"{PREFIX} {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1


def parse(arguments: list[str]) -> Act | int | None:
    """What the arguments ask for, to be called; or the exit code where help was asked for.

    Raises:
        BadInput: An unknown command or option.
    """
    usage_error: type[Any] = typer.BadParameter.__mro__[1]  # of the click that this typer brings, or uses
    parser = typer.main.get_command(app)
    try:
        answer: Act | int | None = parser.main(arguments or ["--help"], "autoddp", standalone_mode=False)
    except usage_error as error:
        raise BadInput(f"{error.format_message()} See autoddp --help") from None
    return answer
