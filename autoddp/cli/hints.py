"""Hints for two mistakes: options after the script, and a script without a command."""

from __future__ import annotations

import os
from collections.abc import Sequence

from autoddp.options import table
from autoddp.options.row import RUN, flag

USAGE_ERROR = 2  # the exit code of argparse, click and others for an unknown option


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
