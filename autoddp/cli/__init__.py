"""The command line: read options, call one function, set the exit code."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import typer

from autoddp.cli import commands, hash_seed, hints
from autoddp.cli.parameters import Act, app
from autoddp.errors import AutoDDPError, BadInput
from autoddp.report import PREFIX, stdout_is_read

__all__ = ["app", "command", "commands", "main", "parse"]


def main() -> NoReturn:
    """Run the console script `autoddp`."""
    hash_seed.restart(sys.argv[1:], os.environ)
    try:
        code = command(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        if stdout_is_read():  # another pipe broke
            raise
        os._exit(128 + signal.SIGPIPE)
    if "autoddp.launch.agent" in sys.modules:
        # ranks ran in forks: nothing is left to end here, and torch's own end takes half a second
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def command(arguments: list[str]) -> int:
    """Run the command that the arguments name, and return its exit code."""
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
        raise BadInput(hints.wanted(arguments) or described(error, arguments)) from None
    return answer


def described(error: Any, arguments: list[str]) -> str:
    """Return typer's error for a wrong command or option, and the command that shows help."""
    known = arguments[:1] if arguments[0] in typer.main.get_command(app).commands else []  # type: ignore[attr-defined]
    of = error.ctx.command_path if error.ctx is not None else " ".join(["autoddp", *known])
    return f"{error.format_message().rstrip('.')}; see {of} --help"
