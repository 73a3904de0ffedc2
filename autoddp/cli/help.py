"""The help of all commands: panels as wide as the terminal, up to 100 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

from autoddp.cli.examples import EXAMPLES
from autoddp.options.panels import PANELS, WRONG

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.panel import Panel

WIDEST = 100
NAMES = 27  # columns of what is typed: longer ones are wrapped
COMMANDS, OPTIONS = "Commands", "Other options"
ORDER = ("Arguments", COMMANDS, *PANELS, WRONG, OPTIONS)

Line = tuple[str, str]  # what is typed, and what it does


class PanelCommand(TyperCommand):
    """A command whose help is in panels; typer's own leave 22 of 80 columns to the words."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(text(self, ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave everything after `-c CODE` to the code, as python does."""
        return super().parse_args(ctx, code_apart(self, args))


class PanelGroup(TyperGroup):
    """The command `autoddp`, with its help in panels."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(text(self, ctx))


def text(command: Any, ctx: Any) -> str:
    """Return the help of a command, for this terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    with console.capture() as captured:
        console.print(f"Usage: {ctx.command_path} [OPTIONS] {arguments(command)}", markup=False)
        for paragraph in (command.help or "").split("\n\n"):
            console.print()
            console.print(" ".join(paragraph.split()), markup=False)
        console.print()
        for title, lines in panels(command, ctx).items():
            console.print(panel(title, lines))
        examples = (f"{typed}\n    {does}" for typed, does in EXAMPLES[ctx.info_name])
        console.print(framed("Examples", "\n".join(examples)))
    return captured.get()


def arguments(command: Any) -> str:
    """Return what stands behind the options of a command."""
    if isinstance(command, PanelGroup):
        return "COMMAND [ARGS...]"
    taken = (each for each in command.params if isinstance(each, TyperArgument))
    return " ".join(each.metavar or "" for each in taken)


def panel(title: str, lines: list[Line]) -> Panel:
    """Draw a panel with two columns."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=NAMES, overflow="fold")
    grid.add_column(ratio=1)
    for typed, says in lines:
        grid.add_row(Text(typed, "bold"), Text(says))
    return framed(title, grid)


def framed(title: str, inner: RenderableType) -> Panel:
    """Draw the frame of a panel."""
    from rich.panel import Panel
    from rich.text import Text

    shown = Text(inner) if isinstance(inner, str) else inner
    return Panel(shown, title=title, title_align="left", border_style="dim")


def panels(command: Any, ctx: Any) -> dict[str, list[Line]]:
    """Return what a command takes by the panels in which it is shown."""
    found: dict[str, list[Line]] = {title: [] for title in ORDER}
    for name in command.list_commands(ctx) if isinstance(command, PanelGroup) else ():
        says = command.get_command(ctx, name).help.partition("\n\n")[0]
        found[COMMANDS].append((name, " ".join(says.split())))
    for taken in command.get_params(ctx):
        title = getattr(taken, "rich_help_panel", None) or OPTIONS
        found["Arguments" if isinstance(taken, TyperArgument) else title].append(line(taken))
    return {title: lines for title, lines in found.items() if lines}


def line(taken: Any) -> Line:
    """Return an option's names and type, and its help and default."""
    if isinstance(taken, TyperArgument):
        return taken.metavar or "", taken.help or ""
    names = " ".join(filter(None, (", ".join(taken.opts), taken.metavar)))
    return names, " ".join((taken.help, *default(taken)))


def default(taken: Any) -> Iterator[str]:
    """Yield the default of an option, in brackets; of one that ends the program there is none."""
    if taken.expose_value:
        shown = taken.show_default
        value = shown if isinstance(shown, str) else taken.default
        yield f"[default: {value or ('off' if taken.is_flag else 'none')}]"


def code_apart(command: Any, args: list[str]) -> list[str]:
    """Put `--` behind `-c CODE`, where that is an option of the command and not the script's."""
    taken = {name: option for option in command.params for name in option.opts}
    at = 0
    while "-c" in taken and at < len(args) and args[at][:1] == "-" and args[at] not in ("-", "--"):
        word = args[at]
        name = word if word.startswith("--") else word[:2]
        option = taken.get(name)
        valued = option is not None and not option.is_flag and name == word and "=" not in word
        at += 2 if valued else 1
        if name == "-c" and at <= len(args):
            return [*args[:at], "--", *args[at:]]
    return args
