"""Print the answer, where the numbers differ, and the table."""

from __future__ import annotations

import json
from pathlib import Path

from autoddp.report import PREFIX
from autoddp.tools.verify.findings import ASPECTS, Difference, Findings
from autoddp.tools.verify.verdict import DIFFERENT, NOT_RUN, WORDS, Conclusion, VerifyOptions

PLURALS = {
    "steps": "steps",
    "loss": "losses",
    "learning rate": "learning rates",
    "gradient": "gradients",
    "parameter": "parameters",
    "generator": "generators' states",
    "ending": "exit code",
    "print": "printed lines",
    "file": "files",
}
NO_NUMBERS = ("steps", "generator", "ending")
TOGETHER = 4  # at most so many differences of the first step that differs are shown
GAP = "  "


def finish(verdict: Conclusion, wanted: VerifyOptions, quiet: bool) -> int:
    """Tell the conclusion in the ways that are wanted, and return its exit code."""
    if not quiet:
        print("\n".join(lines(verdict)))
    if wanted.json is not None:
        Path(wanted.json).write_text(json.dumps(verdict.data(), indent=2))
    return verdict.code


def lines(verdict: Conclusion) -> list[str]:
    """Return the lines to print: the answer first, then what led to it."""
    found = [f"{PREFIX} {WORDS[verdict.code]}: {verdict.why}"]
    if verdict.cause is not None:
        found += [
            f"{PREFIX} cause: {verdict.cause.what}",
            f"{PREFIX} what helps: {verdict.cause.mend}",
        ]
    found += verdict.tail
    if verdict.code == DIFFERENT:
        wide = [] if verdict.wide is None else verdict.wide.differences
        others = verdict.among.differences
        found += first("rank 0", f"rank {others[0].rank}" if others else "", others, "ranks part")
        found += first(*verdict.names, verdict.findings.differences or wide)
    if verdict.code != NOT_RUN:
        found += ["", *aligned(table(verdict))]
    return found + [""] * bool(verdict.notes) + [f"{PREFIX} {note}" for note in verdict.notes]


def first(
    one: str, other: str, differences: list[Difference], title: str = "first divergence"
) -> list[str]:
    """Show the first divergence: what differs at its step, with both values."""
    if not differences:
        return []
    start = differences[0]
    together = [d for d in differences if (d.step, d.rank) == (start.step, start.rank)][:TOGETHER]
    rows = [[title + (f", step {start.step}" if start.step else ""), one, other, "off by"]]
    rows += [[f"{d.line + ' ' if d.line else ''}{d.what}", d.want, d.got, d.off] for d in together]
    return ["", *aligned(rows)]


def table(verdict: Conclusion) -> list[list[str]]:
    """Make one row for each thing that was compared, below a row of titles."""
    control = verdict.control if verdict.control.counts else None
    made = [
        ["compared", "number", "differ", "off by at most"]
        + ["one process alone"] * (control is not None)
    ]
    kinds = [("", verdict.findings, control), (", in float64", verdict.wide, None)]
    for name, findings, again in kinds:
        for aspect in ASPECTS:
            if findings is not None and aspect in findings.counts:
                made.append(
                    [PLURALS[aspect] + name, *cells(findings, aspect), *alone(again, aspect)]
                )
    for aspect in verdict.among.counts:
        made.append(["steps, rank against rank", *cells(verdict.among, aspect)])
    return made


def cells(findings: Findings, aspect: str) -> tuple[str, str, str]:
    """Return how many were compared, how many differ, and by how much."""
    count = findings.counts[aspect]
    worst = f"{count.worst:.1e}" if count.worst else "0"
    differ = str(findings.differ(aspect))
    return str(count.compared), differ, "" if aspect in NO_NUMBERS else worst


def alone(control: Findings | None, aspect: str) -> list[str]:
    """Return a cell with how much one process differs from itself, or none if unknown."""
    if control is None or aspect in NO_NUMBERS or aspect not in control.counts:
        return []
    worst = control.counts[aspect].worst
    return [f"{worst:.1e}" if worst else "0"]


def aligned(rows: list[list[str]]) -> list[str]:
    """Align columns, the first to the left and numbers to the right."""
    width = [max(len(row[k]) for row in rows if k < len(row)) for k in range(len(rows[0]))]
    return [
        GAP.join(
            cell.ljust(width[k]) if k == 0 else cell.rjust(width[k]) for k, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]
