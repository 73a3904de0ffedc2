"""`docs/libraries.md`: what came of the scripts."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from tests.libraries.compare import Row
from tests.support.warm import ROOT

PAGE = ROOT / "docs" / "libraries.md"
HEAD = """\
# Libraries

`python -m tests.libraries` runs a short script on each of these libraries, written as on the first page of its documentation: with `python`, and with `autoddp run` on two or three ranks. It compares exit codes, all that is printed, and all files with their content. Each run has a fresh home directory.

In the column *result*, *equal* means the same bits. Otherwise it is the largest relative difference of all numbers: sums over a batch are taken in another order. Where the library computes in float32, this is said. *Sharded* is the share of the work in modules that is divided between ranks; *seconds* include the start and imports, for `python` and for ranks, and the work of these scripts is small.

"""  # noqa: E501


def page(rows: Sequence[Row]) -> str:
    """The text of the page."""
    lines = [
        "| library | version | what is trained | ranks | result | sharded | seconds |",
        "|---|---|---|---|---|---|---|",
        *map(line, rows),
    ]
    import torch

    where = f"Python {platform.python_version()}, torch {torch.__version__.partition('+')[0]}"
    apart = [f"* {name}: {reason}" for name, reason in reasons(rows)]
    notes = ["", "Not compared, or compared less strictly:", "", *apart] if apart else []
    return HEAD + "\n".join([*lines, "", f"{where}, CPU.", *notes, ""])


def line(row: Row) -> str:
    case = row.case
    cells = [case.package, row.version or "", case.trains]
    if row.ran:
        shared = "" if row.shared is None else f"{row.shared:.0%}"
        cells += [str(case.ranks), result(row), shared, "{:.1f} / {:.1f}".format(*row.seconds)]
    else:
        cells += ["", f"not run: {row.wrong}", "", ""]
    return f"| {' | '.join(cells)} |"


def result(row: Row) -> str:
    if row.wrong:
        return "**different**"
    return f"rounding, {row.largest:.0e}".replace("e-0", "e-") if row.largest else "equal"


def reasons(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What is compared less strictly, or not at all, of each library, with the reason."""
    found = []
    for case in (row.case for row in rows):
        found += [(case.package, case.reason)] if case.reason and case.run else []
        found += [(case.package, f"`{what}`: {why}") for what, why in case.ignore.items()]
        found += [(case.package, f"`{what}`: {why}") for what, why in case.unlike.items()]
    return list(dict.fromkeys(found))


def write(rows: Sequence[Row], path: Path = PAGE) -> None:
    path.write_text(page(rows))
