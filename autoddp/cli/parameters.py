"""Make typer commands from functions and the table of options."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoddp import __version__
from autoddp.cli.help import examples, panel_of
from autoddp.errors import BadInput
from autoddp.options import table, variables
from autoddp.options.parsing import Values, parse
from autoddp.options.row import OptionRow, flag
from autoddp.report import PREFIX

if TYPE_CHECKING:
    from autoddp.process.script import Script

Action = Callable[[], int]  # returned by a command, and called outside of typer
Command = Callable[..., Action]
GetScript = Callable[[], Any]  # returns the `Script`, or raises if none was given

RECORDINGS = "[OPTIONS] --recordings A B"
SCRIPT_HELP = "A file, or with -m a module."
ARGS_HELP = "The script's own arguments."

app = typer.Typer(
    help="Run an unmodified single-GPU PyTorch script on N processes.\n\n"
    "autoddp COMMAND --help shows the options of a command.",
    rich_markup_mode="rich",
    epilog=examples("autoddp"),
)


def show_version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        print(f"autoddp {__version__}")
        raise typer.Exit


@app.callback()
def autoddp(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=show_version,
            is_eager=True,
            expose_value=False,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Define the options before a command."""


def command_of(name: str) -> Callable[[Command], Command]:
    """Make a command of a function, with its own options and those of the table.

    The function gets a function that returns the script, the values of the table's options that it
    does not declare itself, and its own options as text.
    """

    def register(function: Command) -> Command:
        declared = inspect.signature(function, eval_str=True).parameters.values()
        own = [p for p in declared if p.kind is inspect.Parameter.KEYWORD_ONLY]
        rows = [(f, row) for f, row in table(name) if f.name not in {p.name for p in own}]

        def call(script: str | None, args: list[str] | None, **own_values: Any) -> Action:
            texts = {field.name: own_values.pop(field.name) for field, _ in rows}
            runs = not own_values.get("recordings")
            shared = values(name, texts, os.environ if runs else {}, own_values)
            usage = "[OPTIONS] SCRIPT [ARGS...]" if runs else RECORDINGS
            words = script, args or (), bool(shared["module"])
            return function(lambda: script_of(f"{name} {usage}", *words), shared, **own_values)

        parameters = [
            argument("script", "SCRIPT", SCRIPT_HELP, str | None),
            argument("args", "ARGS", ARGS_HELP, list[str] | None),
            *own,
            *(parameter(field, row) for field, row in rows),
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__, call.__doc__ = {}, function.__doc__
        settings = {"allow_interspersed_args": False}
        app.command(name, context_settings=settings, epilog=examples(name))(call)
        return function

    return register


def values(command: str, texts: Values, environ: Mapping[str, str], own: Iterable[str]) -> Values:
    """Return the values of a command's options in the table.

    Args:
        command: The command.
        texts: The texts of the options.
        environ: The environment variables.
        own: Names of the options that the command declares itself.
    """
    defaults: Values = {}
    given: Values = {}
    for field, _ in table(command):
        if field.name in texts:
            defaults[field.name] = field.default
            if texts[field.name] not in (None, False, []):  # an empty text is a value
                given |= parse(field, texts[field.name])
    shared = defaults | variables.read(command, environ, {*given, *own}) | given
    if not shared["quiet"] and (hint := variables.unknown(environ, command)):
        print(f"{PREFIX} {hint}", file=sys.stderr)
    return shared


def argument(name: str, metavar: str, text: str, kind: Any) -> inspect.Parameter:
    """Declare a positional argument."""
    hint = Annotated[kind, typer.Argument(metavar=metavar, help=text)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)


def parameter(field: Field[Any], row: OptionRow) -> inspect.Parameter:
    """Declare an option, as text: `options.parsing` parses numbers, with errors of one line."""
    kind, default = str(field.type), False if field.type == "bool" else None
    flags = row.flags or (flag(field.name),)
    hint: Any = bool if kind == "bool" else str | None
    if kind.startswith("tuple"):
        hint = list[str] | None
    type_name = "INTEGER" if kind.startswith("int") else "TEXT"
    option = typer.Option(
        *flags,
        help=row.help.replace("`", ""),
        metavar=None if kind == "bool" else " | ".join(row.choices) or row.metavar or type_name,
        show_default=row.default_text.replace("`", "")
        if field.default is None and row.default_text
        else default_text(field.default),
        rich_help_panel=panel_of(field.name),
        autocompletion=(lambda: list(row.choices)) if row.choices else None,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[hint, option],
    )


def default_text(default: Any) -> str:
    """Return the default of an option for the help."""
    if default is False:
        return "off"
    return "none" if default in (None, ()) else str(default)


def script_of(usage: str, script: str | None, args: Sequence[str], module: bool) -> Script:
    """Return the script to run, or the folders to read as a `Script`.

    Raises:
        BadInput: No script or folder was given.
    """
    from autoddp.process.script import Script

    if script is None:
        what = "recordings" if usage.endswith(RECORDINGS) else "script"
        raise BadInput(f"no {what} given; usage: autoddp {usage}")
    return Script(script, tuple(args), module)
