"""The command line: parse options, call one function, and exit with its code."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import typer

from autoddp.cli import commands, hash_seed
from autoddp.cli.help import missing_command
from autoddp.cli.parameters import Action, app
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
        # the ranks were forks, and ending torch in this process would take 0.5 s
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def command(arguments: list[str]) -> int:
    """Run the command that the arguments name, and return its exit code."""
    try:
        action = parse(arguments)
        return action() if callable(action) else action or 0
    except AutoDDPError as error:
        print(f"{PREFIX} {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1


def parse(arguments: list[str]) -> Action | int | None:
    """Return the action for the arguments, or an exit code after printing help.

    Raises:
        BadInput: The command or an option does not exist.
    """
    usage_error: type[Any] = typer.BadParameter.__mro__[1]  # of the click that typer uses
    parser = typer.main.get_command(app)
    try:
        result: Any = parser.main(arguments or ["--help"], "autoddp", standalone_mode=False)
    except usage_error as error:
        raise BadInput(missing_command(arguments) or described(error, arguments)) from None
    return result


def described(error: Any, arguments: list[str]) -> str:
    """Return typer's error for a wrong command or option, and the command that shows help."""
    known = arguments[:1] if arguments[0] in typer.main.get_command(app).commands else []  # type: ignore[attr-defined]
    path = error.ctx.command_path if error.ctx is not None else " ".join(["autoddp", *known])
    text = error.format_message().rstrip(".")
    return f"{text}{' See' if text.endswith('?') else '; see'} {path} --help"
