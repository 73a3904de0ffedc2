"""Is what N ranks printed and wrote what one process did? By the comparer of `autoddp verify`.

Every comparison returns the largest difference it met and fails with the place and both values
where that is above `rtol`. An `rtol` of 0 asks for the same bytes.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

from autoddp.tools.verify.findings import PRINT, Findings
from autoddp.tools.verify.outputs import Repeats, compare_files
from autoddp.tools.verify.same import unlike
from autoddp.tools.verify.text import NUMBER, compare_lines
from tests.support.warm import Run

__all__ = ["NUMBER", "same_files", "same_run", "same_terminal", "same_text", "same_value"]

OURS = re.compile(r"\[autoddp\] |\s*$|.*\d%")  # our own lines, and bars that the clock draws
TEXTS = (".csv", ".json", ".jsonl", ".log", ".txt")  # whose ends of lines are the same, too
CLOCK = re.compile(r"\d{8}-\d{6}")  # a name made by strftime("%Y%m%d-%H%M%S")


class Clocks(Repeats):
    """Names of files that the clock has made are the same in all runs."""

    def form(self, name: str) -> str:
        """The name without the time."""
        return CLOCK.sub("TIME", name)


def same_run(want: Run, got: Run, rtol: float) -> float:
    """Compare exit codes, terminals and files of two runs."""
    worst = same_terminal(want, got, rtol)
    return max(worst, same_files(want.folder, got.folder, rtol))


def same_terminal(want: Run, got: Run, rtol: float) -> float:
    """Compare exit codes and what was printed; nothing is added to stderr but our own lines."""
    shown = f"\n--- stdout\n{got.out[-2000:]}\n--- stderr\n{got.err[-4000:]}"
    assert got.code == want.code, f"exit code {got.code} instead of {want.code}{shown}"
    added = [line for line in got.err.splitlines() if line not in want.err.splitlines()]
    strange = [line for line in added if not OURS.match(line)]
    assert not strange, f"on stderr: {strange[0]!r}{shown}"
    assert not got.left, f"outlived the command: {got.left}"
    return same_text(want.out, got.out, rtol, "stdout")


def same_text(want: str, got: str, rtol: float, name: str) -> float:
    """Compare two texts line by line; what is printed of a number must be as near as it says."""
    a, b = (CLOCK.sub("TIME", text) for text in (want, got))
    findings = Findings()
    texts = a.splitlines(), b.splitlines()
    findings.take_all(compare_lines(PRINT, name, texts, rtol, last_digit=False), rtol)
    worst = equal(findings)
    assert rtol or a == b, f"{name}: other characters"
    return worst


def same_value(want: Any, got: Any, rtol: float, where: str) -> float:
    """Compare all that a checkpoint may hold, to its leaves; the largest difference."""
    worst = 0.0
    for found in unlike(want, got, where):
        assert found.size <= rtol, found.described()
        worst = max(worst, found.size)
    return worst


def same_files(want: Path, got: Path, rtol: float) -> float:
    """The same names, and content that agrees by the kind of file."""
    findings = Findings()
    compare_files(findings, (want, got), rtol, last_digit=False, repeats=Clocks())
    for path in (path for path in got.rglob("*") if path.suffix in (".pt", ".pth")):
        with zipfile.ZipFile(path) as archive:
            pickles = [archive.read(n) for n in archive.namelist() if n.endswith(".pkl")]
        assert not any(b"autoddp" in text for text in pickles), f"{path} names a class of ours"
    if not rtol:
        named = (path for path in want.rglob("*") if path.suffix in TEXTS)
        for path in (path for path in named if (got / path.relative_to(want)).exists()):
            same_text(path.read_text(), (got / path.relative_to(want)).read_text(), 0, path.name)
    return equal(findings)


def equal(findings: Findings) -> float:
    """The largest difference, once it is known that none is too large."""
    assert findings.equal, findings.differences[0].described()
    return findings.largest
