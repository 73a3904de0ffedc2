"""The help of all commands: the panels of their options, and examples."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

SAME, WRONG = "What one process means", "When something is wrong"
PANELS = {
    "Launch": ("nproc", "module", "gpus_per_rank", "backend", "own_ddp"),
    "Several nodes": ("nnodes", "node_rank", "master_addr", "master_port"),
    SAME: ("view", "batchnorm", "draws", "strict"),
    "Speed": ("loading", "average_every", "rowwise"),
}
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


def panel_of(name: str) -> str:
    """Return the panel of the help in which an option of the table stands."""
    return next((panel for panel, names in PANELS.items() if name in names), WRONG)


def examples(name: str) -> str:
    """Return the end of a command's help: what to type, and what it does."""
    lines = (f"{typed}\n\n    {does}" for typed, does in EXAMPLES[name])
    return "\n\n".join(("Examples:", *lines))


class CodeCommand(TyperCommand):
    """A command with `-c CODE`, which takes everything behind it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave everything after `-c CODE` to the code, as python does."""
        return super().parse_args(ctx, code_apart(self, args))


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
