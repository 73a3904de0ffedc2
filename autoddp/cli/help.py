"""The help of all commands: what a command takes in groups, and examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

from autoddp.options.panels import PANELS, WRONG

OPTIONS = "Other options"
ORDER = ("Arguments", *PANELS, WRONG, OPTIONS)
EXAMPLES = {
    "autoddp": (
        ("autoddp run --nproc 4 train.py", "Run train.py on four ranks."),
        ("autoddp verify train.py", "Compare it on two ranks with one process."),
    ),
    "run": (
        ("autoddp run --nproc 4 train.py --lr 1e-3", "Four ranks; --lr is the script's."),
        ("AUTODDP_HANG_TIMEOUT=60 autoddp run -m pkg.train", "A variable gives an option."),
    ),
    "verify": (
        ("autoddp verify --steps 5 train.py", "Compare two ranks with one, for five steps."),
        ("autoddp verify --json found.json train.py", "Tell all as data."),
    ),
    "bench": (
        ("autoddp bench --nproc 1,2,4 train.py", "Time the script on 1, 2 and 4 ranks."),
        ("autoddp bench --recordings A B", "Compare two folders of autoddp run --record."),
    ),
    "patches": (
        ("autoddp patches files", "Show the patches of one feature."),
        ("autoddp patches | grep torch:save", "Find one function; a line is a patch."),
    ),
    "env": (
        ("autoddp env", "Show it."),
        ("autoddp env > env.txt", "Write it to a file, for a bug report."),
    ),
}


class HelpfulCommand(TyperCommand):
    """A command that shows its options in groups."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        taken = (each for each in self.params if isinstance(each, TyperArgument))
        return ["[OPTIONS]", *(each.metavar or "" for each in taken)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in ORDER}
        for taken in self.get_params(ctx):
            title = getattr(taken, "rich_help_panel", None) or OPTIONS
            groups["Arguments" if isinstance(taken, TyperArgument) else title].append(line(taken))
        for title, lines in groups.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        examples(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave everything after `-c CODE` to the code, as python does."""
        return super().parse_args(ctx, code_apart(self, args))


class HelpfulGroup(TyperGroup):
    """The command `autoddp`, whose help ends with examples."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        examples(ctx, formatter)


def examples(ctx: Any, formatter: Any) -> None:
    """Write what is typed, and what it does."""
    with formatter.section("Examples"):
        for typed, does in EXAMPLES[ctx.info_name]:
            formatter.write(f"  {typed}\n    {does}\n")


def line(taken: Any) -> tuple[str, str]:
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
