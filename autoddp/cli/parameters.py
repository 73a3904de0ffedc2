"""Make a command of typer from a function and the table of options."""

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
from autoddp.options.given import Given, read
from autoddp.options.row import OptionRow, flag
from autoddp.report import PREFIX

if TYPE_CHECKING:
    from autoddp.process.script import Script

Act = Callable[[], int]  # returned by a command, and called outside of typer's frames
Command = Callable[..., Act]
Naming = Callable[[], Any]  # returns the `Script`, or raises that none was given

RECORDINGS = "[OPTIONS] --recordings A B"
SCRIPT_HELP = "A file, or with -m a module."
ARGS_HELP = "The script's own arguments."

app = typer.Typer(
    help="Run an unmodified single-GPU PyTorch script on N processes.\n\n"
    "autoddp COMMAND --help shows what a command takes.",
    rich_markup_mode="rich",
    epilog=examples("autoddp"),
)


def show_version(wanted: bool) -> None:
    """Print the version and end."""
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
    """Define the options that come before a command."""


def command_of(taker: str) -> Callable[[Command], Command]:
    """Make a command of a function, which takes the table's options, too.

    The function is called with a function that names its script, the values of the table's options
    that it does not declare itself, and its own options as text.
    """

    def register(function: Command) -> Command:
        declared = inspect.signature(function, eval_str=True).parameters.values()
        own = [p for p in declared if p.kind is inspect.Parameter.KEYWORD_ONLY]
        rows = [(f, row) for f, row in table(taker) if f.name not in {p.name for p in own}]

        def called(script: str | None, args: list[str] | None, **given: Any) -> Act:
            typed = {field.name: given.pop(field.name) for field, _ in rows}
            asked = not given.get("recordings")  # else nothing runs
            shared = values(taker, typed, os.environ if asked else {}, given)
            wanted = RECORDINGS if given.get("recordings") else "[OPTIONS] SCRIPT [ARGS...]"
            words = script, args or (), bool(shared["module"])
            return function(lambda: named(f"{taker} {wanted}", *words), shared, **given)

        made = [
            argument("script", "SCRIPT", SCRIPT_HELP, str | None),
            argument("args", "ARGS", ARGS_HELP, list[str] | None),
            *own,
            *(parameter(field, row) for field, row in rows),
        ]
        called.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]  # typer reads it
        called.__annotations__, called.__doc__ = {}, function.__doc__
        settings = {"allow_interspersed_args": False}
        app.command(taker, context_settings=settings, epilog=examples(taker))(called)
        return function

    return register


def values(taker: str, typed: Given, environ: Mapping[str, str], own: Iterable[str]) -> Given:
    """Return the values of a command's options.

    Args:
        taker: The command.
        typed: The options of the table as they were typed, or not.
        environ: The variables.
        own: Names of the options that the command declares itself.
    """
    plain: Given = {}
    found: Given = {}
    for field, _ in table(taker):
        if field.name in typed:
            plain[field.name] = field.default
            if typed[field.name] not in (None, False, []):  # an empty text is one that was typed
                found |= read(field, typed[field.name])
    shared = plain | variables.given(taker, environ, {*found, *own}) | found
    if not shared["quiet"] and (slip := variables.unknown(environ, taker)):
        print(f"{PREFIX} {slip}", file=sys.stderr)
    return shared


def argument(name: str, shown: str, says: str, kind: Any) -> inspect.Parameter:
    """Declare an argument without a flag."""
    taken = Annotated[kind, typer.Argument(metavar=shown, help=says)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=taken)


def parameter(field: Field[Any], row: OptionRow) -> inspect.Parameter:
    """Declare an option; numbers are parsed by `options.given`, whose errors are one line."""
    kind, default = str(field.type), False if field.type == "bool" else None
    flags = row.flags or (flag(field.name),)
    taken: Any = bool if kind == "bool" else str | None
    if kind.startswith("tuple"):
        taken = list[str] | None
    words = " | ".join(row.words) or row.takes or ("INTEGER" if kind.startswith("int") else "TEXT")
    says = typer.Option(
        *flags,
        help=row.says.replace("`", ""),
        metavar=None if kind == "bool" else words,
        show_default=row.shown.replace("`", "")
        if field.default is None and row.shown
        else shown(field.default),
        rich_help_panel=panel_of(field.name),
        autocompletion=(lambda: list(row.words)) if row.words else None,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[taken, says],
    )


def shown(default: Any) -> str:
    """Write the default of an option."""
    if default is False:
        return "off"
    return "none" if default in (None, ()) else str(default)


def named(usage: str, script: str | None, args: Sequence[str], module: bool) -> Script:
    """Name the script that is to run, or the folders that are to be read.

    Raises:
        BadInput: None was given.
    """
    from autoddp.process.script import Script

    if script is None:
        many = usage.endswith(RECORDINGS)
        what = "recordings given; say which" if many else "script given; say which one"
        raise BadInput(f"no {what}: autoddp {usage}")
    return Script(script, tuple(args), module)
