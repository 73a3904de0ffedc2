"""The environment variables for options: AUTODDP_NPROC=2 is `--nproc 2`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field
from typing import Any

from autoddp.errors import BadInput
from autoddp.options import table
from autoddp.options.parsing import Values, parse
from autoddp.options.row import flag

PREFIX = "AUTODDP_"
INTERNAL = {"AUTODDP_PYTHONHASHSEED"}
TRUTH = {"1": True, "yes": True, "true": True, "0": False, "no": False, "false": False}


def variable(name: str) -> str:
    """Return the name of the variable for an option."""
    return PREFIX + name.upper()


def read(command: str, environ: Mapping[str, str], skip: Iterable[str] = ()) -> Values:
    """Read the variables for the options of a command, or of `@distributed`.

    Args:
        command: The command.
        environ: The variables; an empty one counts as not set.
        skip: Names of options whose variables are not read.

    Raises:
        BadInput: A variable has a wrong value.
    """
    values: Values = {}
    for field, row in table(command):
        text = environ.get(variable(field.name))
        if not text or field.name in skip or row.flags == ("-m",):
            continue
        values |= parse(field, _value(field, text))
    return values


def _value(field: Field[Any], text: str) -> Any:
    if field.type == "bool":
        if text.lower() not in TRUTH:
            raise BadInput(f"{flag(field.name)} is {text!r}; it takes 1 or 0")
        return TRUTH[text.lower()]
    return [text] if str(field.type).startswith("tuple") else text


def unknown(environ: Mapping[str, str], command: str) -> str:
    """Return a line about a variable whose name is similar to that of an option, else nothing."""
    known = {variable(field.name) for field, row in table(command) if row.flags != ("-m",)}
    for name in sorted(set(environ) - known - INTERNAL):
        if name.startswith(PREFIX):
            from difflib import get_close_matches

            for similar in get_close_matches(name, sorted(known), 1, 0.85):
                return f"{name} is set, but there is no such option; did you mean {similar}?"
    return ""
