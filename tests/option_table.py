"""README's table of options: `python -m tests.option_table` writes it from the package's own."""

from __future__ import annotations

import re
from dataclasses import Field
from pathlib import Path
from typing import Any

from autoddp.options import table
from autoddp.options.row import RUN, OptionRow, flag
from tests.cli import ROOT

README = Path(ROOT) / "README.md"
HEAD = "| option | values, the default first | |\n|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"(\|.*\n)*")


def lines() -> str:
    """A line for each option of `autoddp run`."""
    return HEAD + "".join(line(field, row) for field, row in table(RUN))


def line(field: Field[Any], row: OptionRow) -> str:
    """Its flags, its values and what it does."""
    flags = ", ".join(f"`{name}`" for name in row.flags or (flag(field.name),))
    plain = (
        "" if field.default is None or type(field.default) in (bool, tuple) else str(field.default)
    )
    values = ", ".join(row.words) or row.shown or plain
    return f"| {flags} |{f' {values} ' if values else ' '}| {row.says} |\n"


if __name__ == "__main__":
    README.write_text(TABLE.sub(lambda _: lines(), README.read_text()))
