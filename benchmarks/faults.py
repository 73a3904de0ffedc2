"""Every fault in every phase: how long until the command ends, how, and what it says.

    python -m benchmarks.faults [--times 3] [--markdown] [NAME ...]

Whatever is not as promised stands in the last column, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
from pathlib import Path

from tests.support.faults import Case, Laboratory, cases, wrong

COLUMNS = (
    "phase",
    "fault",
    "times",
    "median s",
    "worst s",
    "exit code",
    "said first",
    "not as promised",
)
WIDTHS = (10, 26, 5, 8, 7, 9, 60, 0)


def row(laboratory: Laboratory, case: Case, times: int) -> tuple[list[str], float, bool]:
    """The case's row, its worst time, and whether all was well."""
    seconds: list[float] = []
    firsts: list[str] = []
    codes: set[str] = set()
    faults: set[str] = set()
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="autoddp-") as folder:
            ended = laboratory.run(case, Path(folder, "job"))
            faults |= {re.sub(r"/\S+/", "…/", words) for words in wrong(case, ended)}
        seconds.append(ended.seconds or 0.0)
        codes.add(str(ended.code))
        firsts.append(re.sub(r"; the end of its log .*", "; the end of its log …", ended.first))
    name = " ".join(
        [case.fault, f"({case.ranks} ranks)" if case.ranks > 2 else "", *case.options]
    ).strip()
    said = firsts[0].replace("|", "/")[:100]
    middle, worst = statistics.median(seconds), max(seconds)
    cells = [
        case.phase,
        name,
        str(times),
        f"{middle:.1f}",
        f"{worst:.1f}",
        ", ".join(sorted(codes)),
        said,
    ]
    return [*cells, "; ".join(sorted(faults))], worst, not faults


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    chosen = [
        case for case in cases() if not args.names or any(name in str(case) for name in args.names)
    ]

    def show(cells: list[str] | tuple[str, ...]) -> None:
        if args.markdown:
            print("| " + " | ".join(cells) + " |", flush=True)
        else:
            print(
                " ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)),
                flush=True,
            )

    laboratory = Laboratory()
    show(COLUMNS)
    if args.markdown:
        show(["---"] * len(COLUMNS))
    worst, well = 0.0, 0
    for case in chosen:
        cells, seconds, good = row(laboratory, case, args.times)
        show(cells)
        worst, well = max(worst, seconds), well + good
    runs = args.times * len(chosen)
    load = os.getloadavg()[1]
    print(
        f"\n{runs} runs, {well} of {len(chosen)} cases as promised; "
        f"worst {worst:.1f} s; load {load:.1f}"
    )
    return int(well < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
