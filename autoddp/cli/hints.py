"""Hints for mistakes: options after the script, a script without a command."""

from __future__ import annotations

import os
from collections.abc import Sequence

from autoddp.options import table
from autoddp.options.row import RUN, flag

PARSERS = 2  # the exit code of argparse, click and others for an unknown option


def behind(name: str, args: Sequence[str]) -> str:
    """Return a hint if an option of autoddp comes after the script, otherwise an empty text."""
    plain = {
        flagged: str(field.type) == "bool"
        for field, row in table(RUN)
        for flagged in row.flags or (flag(field.name),)
        if flagged.startswith("--")
    }
    for at, word in enumerate(args):
        found, equals, _ = word.partition("=")
        if found in plain:
            value = () if plain[found] or equals else args[at + 1 : at + 2]
            given = " ".join((word, *value))
            return (
                f"{found} comes after {name}, so it was passed to the script; options of autoddp "
                f"come before it: autoddp run {given} {name}"
            )
    return ""


def wanted(arguments: Sequence[str]) -> str:
    """Return a hint if a script is given in place of a command, otherwise an empty text."""
    first = arguments[0] if arguments else ""
    if first.endswith(".py") or os.path.isfile(first):
        return f"{first} is no command of autoddp; to run it: autoddp run {first}"
    return ""
