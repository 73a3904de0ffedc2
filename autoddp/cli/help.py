"""The help of the commands: panels of options, examples, and hints for two usual mistakes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from autoddp.options import table
from autoddp.options.row import RUN, flag

USAGE_ERROR = 2  # the exit code of argparse, click and others for an unknown option

RESULT, DEBUGGING = "Result", "Output and errors"
PANELS = {
    "Launch": ("nproc", "module", "backend", "own_ddp"),
    "Several nodes": ("nnodes", "node_rank", "master_addr", "master_port"),
    RESULT: ("view", "batchnorm", "draws", "strict"),
    "Speed": ("parameters", "placement", "loading", "average_every", "rowwise"),
}
EXAMPLES = {
    "autoddp": (
        ("autoddp run --nproc 4 train.py", "Run train.py on four ranks."),
        ("autoddp verify train.py", "Compare it on two ranks with one process."),
    ),
    "run": (
        ("autoddp run --nproc 4 train.py --lr 1e-3", "Four ranks; --lr is the script's."),
        ("AUTODDP_HANG_TIMEOUT=60 autoddp run -m pkg.train", "Set an option by a variable."),
    ),
    "verify": (
        ("autoddp verify --steps 5 train.py", "Compare two ranks with one, for five steps."),
        ("autoddp verify --json found.json train.py", "Write the results to a file."),
    ),
    "bench": (
        ("autoddp bench --nproc 1,2,4 train.py", "Time the script on 1, 2 and 4 ranks."),
        ("autoddp bench --recordings A B", "Compare two folders of autoddp run --record."),
    ),
    "patches": (
        ("autoddp patches files", "Show the patches of one feature."),
        ("autoddp patches | grep torch:save", "Find the patch of a function."),
    ),
    "env": (
        ("autoddp env", "Print it."),
        ("autoddp env > env.txt", "Write it to a file, for a bug report."),
    ),
}


def panel_of(name: str) -> str:
    """Return the panel of the help that has an option."""
    return next((panel for panel, names in PANELS.items() if name in names), DEBUGGING)


def examples(name: str) -> str:
    """Return the examples of a command's help."""
    lines = (f"{command}\n\n    {effect}" for command, effect in EXAMPLES[name])
    return "\n\n".join(("Examples:", *lines))


def misplaced_option(name: str, args: Sequence[str]) -> str:
    """Return a hint if an option of autoddp comes after the script, otherwise an empty text."""
    is_flag = {
        option: str(field.type) == "bool"
        for field, row in table(RUN)
        for option in row.flags or (flag(field.name),)
        if option.startswith("--")
    }
    for at, word in enumerate(args):
        option, equals, _ = word.partition("=")
        if option in is_flag:
            value = () if is_flag[option] or equals else args[at + 1 : at + 2]
            words = " ".join((word, *value))
            return (
                f"{option} comes after {name}, so it was passed to the script; options of autoddp "
                f"come before it: autoddp run {words} {name}"
            )
    return ""


def missing_command(arguments: Sequence[str]) -> str:
    """Return a hint if a script is in the place of the command, otherwise an empty text."""
    first = arguments[0] if arguments else ""
    if first.endswith(".py") or os.path.isfile(first):
        return f"{first} is not a command of autoddp; to run it: autoddp run {first}"
    return ""
