"""The table of options in docs/options.md, from the package: `python -m tests.pages` writes it."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

from autoddp.options import table
from autoddp.options.row import RUN, OptionRow, flag

HEAD = "| option | values, the default first | what it does |\n|---|---|---|\n"


def lines() -> str:
    """A line for each option of `autoddp run`."""
    return HEAD + "".join(line(field, row) for field, row in table(RUN))


def line(field: Field[Any], row: OptionRow) -> str:
    """Its flags, its values and what it does."""
    flags = ", ".join(f"`{name}`" for name in row.flags or (flag(field.name),))
    plain = (
        "" if field.default is None or type(field.default) in (bool, tuple) else str(field.default)
    )
    values = ", ".join(row.choices) or row.default_text or plain
    return f"| {flags} |{f' {values} ' if values else ' '}| {row.help} |\n"
