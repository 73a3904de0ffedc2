"""`@distributed`: each call of the decorated function runs on ranks forked from this process."""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Callable
from typing import Any, TypeVar, Unpack, overload

from autoddp.comm.place import HERE
from autoddp.decorator.keywords import Keywords
from autoddp.errors import BadInput
from autoddp.launch import launched, schedulers
from autoddp.options import Options, table, variables
from autoddp.options.row import DECORATOR
from autoddp.process import devices
from autoddp.process.script import strip

F = TypeVar("F", bound=Callable[..., Any])

# otherwise `torch.cuda.is_available()` initializes CUDA, and this process cannot be forked
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
NAMES = tuple(field.name for field, _ in table(DECORATOR))


@overload
def distributed(function: F, /) -> F: ...
@overload
def distributed(**options: Unpack[Keywords]) -> Callable[[F], F]: ...


def distributed(function: Any = None, /, **options: Any) -> Any:
    """Run the decorated function on N ranks, with the result of one process.

    Under plain `python`, this process is rank 0; the other ranks are forked at each call and end
    with it. If a fork is not safe, because other threads run or a GPU is in use, the call raises
    `BadInput` with a fix. By default there is one rank for each GPU. A variable such as
    AUTODDP_NPROC takes precedence over the option. With one rank, in a child process and inside a
    job of autoddp run, the function is called directly. If a rank dies, this process ends at once,
    with an error that names the rank.

    In processes that torchrun, srun or mpirun has started, one for each rank, the call is their
    job, and each of them gets its result.

    Args:
        function: The function, when used without options.
        **options: The options of `autoddp run`, by the same names: nproc, view, backend, ...

    Raises:
        BadInput: An option does not exist, or its value is wrong.

    Example:
        @distributed(nproc=4)
        def main(): ...
    """
    try:
        chosen = choose(options)
        if function is None:
            return functools.partial(decorate, chosen)
        return decorate(chosen, function)
    except BadInput as error:
        error.__traceback__ = None  # show only the script's line
        raise


def decorate(options: Options, function: Any) -> Any:
    """Wrap the function in a plain function that calls it on ranks with these options.

    Libraries that send functions to other processes, like Ray, would lose another kind of wrapper.
    """
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(decorate(options, function.__func__))
    if not callable(function):
        raise BadInput(
            f"@distributed got {function!r}, which is not a function; pass options by name, as in "
            "@distributed(nproc=2)"
        )

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(function, args, kwargs, options)
        except BaseException as error:
            strip(error)
            raise

    return call


def run(wrapped: Callable[..., Any], args: Any, kwargs: Any, options: Options) -> Any:
    """Call the decorated function, on ranks if this process is not one itself."""
    if HERE.world is not None or multiprocessing.parent_process() is not None:
        return wrapped(*args, **kwargs)
    environ = dict(os.environ)
    options = schedulers.resolve(environ, options)
    world = launched(environ)
    ranks = world.world_size if world else count(options)
    if not world and options.nnodes > 1:
        raise BadInput(
            f"@distributed starts ranks on one node, not on {options.nnodes}; start a process for "
            "each rank by torchrun, srun or mpirun, or the whole script by autoddp run"
        )
    if ranks == 1 and not world:
        return wrapped(*args, **kwargs)
    from autoddp.decorator import call, processes  # they import torch

    made = call.DecoratedCall(wrapped, args, kwargs, options)
    if world is None:
        return call.run_rank0(made, ranks)
    processes.check(options, world)
    return wrapped(*args, **kwargs) if ranks == 1 else processes.run(made, world, environ)


def choose(options: dict[str, Any]) -> Options:
    """Make `Options` of the options of `distributed` or of a cell.

    Raises:
        BadInput: An option does not exist, or its value is wrong.
    """
    unknown = sorted(set(options) - set(NAMES))
    if unknown:
        raise BadInput(
            f"@distributed has no option {', '.join(unknown)}; it takes {', '.join(NAMES)}"
        )
    from_environ = variables.read(DECORATOR, os.environ)
    return Options(**{name: plain(name, x) for name, x in (options | from_environ).items()})


def plain(name: str, value: Any) -> Any:
    """Convert a value to the type in `Options`: a path to text, names to a tuple."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if name == "average_every" and type(value) is int:  # a number of steps, or a word
        return str(value)
    if name != "disable":
        return value
    names = value.split(",") if isinstance(value, str) else value
    return tuple(names) if isinstance(names, (list, set, frozenset)) else names


def count(options: Options) -> int:
    """Return the number of ranks of a call under plain `python`."""
    return options.nproc or max(1, len(devices.there(os.environ).names))
