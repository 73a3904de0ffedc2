"""The environment variables that stand for options: AUTODDP_NPROC=2 is `--nproc 2`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field
from typing import Any

from autoddp.errors import BadInput
from autoddp.options import table
from autoddp.options.given import Given, read
from autoddp.options.row import flag

PREFIX = "AUTODDP_"
INTERNAL = {"AUTODDP_PYTHONHASHSEED"}
TRUTH = {"1": True, "yes": True, "true": True, "0": False, "no": False, "false": False}


def variable(name: str) -> str:
    """Name the variable that stands for an option."""
    return PREFIX + name.upper()


def given(taker: str, environ: Mapping[str, str], typed: Iterable[str] = ()) -> Given:
    """Read the variables of the options that one command, or `@distributed`, takes.

    Args:
        taker: The command.
        environ: The variables; an empty one counts as not set.
        typed: Names of the options that were typed, which win.

    Raises:
        BadInput: A variable holds what its option does not take.
    """
    found: Given = {}
    for field, row in table(taker):
        text = environ.get(variable(field.name))
        if not text or field.name in typed or row.flags == ("-m",):
            continue
        found |= read(field, _value(field, text))
    return found


def _value(field: Field[Any], text: str) -> Any:
    if field.type == "bool":
        if text.lower() not in TRUTH:
            raise BadInput(f"{flag(field.name)} is {text!r}; it takes 1 or 0")
        return TRUTH[text.lower()]
    return [text] if str(field.type).startswith("tuple") else text


def unknown(environ: Mapping[str, str], taker: str) -> str:
    """Return a line on a variable whose name is nearly an option's; else nothing."""
    known = {variable(field.name) for field, row in table(taker) if row.flags != ("-m",)}
    for name in sorted(set(environ) - known - INTERNAL):
        if name.startswith(PREFIX):
            from difflib import get_close_matches

            for meant in get_close_matches(name, sorted(known), 1, 0.85):
                return f"{name} is set, but there is no such option; is {meant} meant?"
    return ""
