"""The conclusion from all that was compared, as it is shown and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoddp.errors import BadInput
from autoddp.report import PREFIX
from autoddp.tools import runs
from autoddp.tools.verify.causes import Cause
from autoddp.tools.verify.findings import (
    ASPECTS,
    ENDING,
    GENERATOR,
    OTHER,
    STEPS,
    Difference,
    Findings,
)

EQUAL, DIFFERENT, NOT_RUN = 0, 1, 2
WORDS = {EQUAL: "equal", DIFFERENT: "different", NOT_RUN: "could not run"}
PLURALS = (
    *("steps", "losses", "learning rates", "gradients", "parameters", "generators' states"),
    *("exit code", "printed lines", "files"),
)
NO_NUMBERS = (STEPS, GENERATOR, ENDING)
TOGETHER = 4  # at most so many differences of the first step that differs are shown


@dataclass(frozen=True)
class VerifyOptions:
    """The options of `autoddp verify` that `autoddp run` has not."""

    steps: int | None = None
    float64: bool = False
    plot: str | None = None
    json: str | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise BadInput(f"--steps is {self.steps}; at least 1 step is compared")
        runs.check_files(self.json, self.plot)


@dataclass
class Conclusion:
    """The conclusion on one script, run on some number of ranks."""

    script: str
    nproc: int
    names: tuple[str, str]  # of the two that are compared
    code: int = EQUAL
    why: str = ""  # in one sentence
    findings: Findings = field(default_factory=Findings)
    among: Findings = field(default_factory=Findings)
    wide: Findings | None = None  # one process against the ranks in float64
    cause: Cause | None = None
    tail: list[str] = field(default_factory=list)  # the end of an error
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def finish(self, wanted: VerifyOptions, quiet: bool) -> int:
        """Tell the conclusion in the ways that are wanted, and return its exit code."""
        if not quiet:
            print("\n".join(self.lines()))
        if wanted.json is not None:
            Path(wanted.json).write_text(json.dumps(self.data(), indent=2))
        return self.code

    def lines(self) -> list[str]:
        """Return the lines to print: the answer first, then what led to it."""
        found = [f"{PREFIX} {WORDS[self.code]}: {self.why}"]
        if self.cause is not None:
            found += [f"{PREFIX} cause: {self.cause.what}"]
            found += [f"{PREFIX} what helps: {self.cause.mend}"]
        found += self.tail
        if self.code == DIFFERENT:
            others = self.among.differences
            apart = "rank 0", f"rank {others[0].rank}" if others else ""
            wide = self.wide is not None and self.wide.differences
            found += first("ranks part", apart, others)
            found += first("first divergence", self.names, wide or self.findings.differences)
        if self.code != NOT_RUN:
            found += ["", *aligned(self.table())]
        return found + [""] * bool(self.notes) + [f"{PREFIX} {note}" for note in self.notes]

    def table(self) -> list[list[str]]:
        """Make one row for each thing that was compared, below a row of titles."""
        made = [["compared", "number", "differ", "off by at most"]]
        kinds = ("", self.findings), (", in float64", self.wide), (" of ranks", self.among)
        for name, found in kinds:
            for aspect, plural in zip(ASPECTS, PLURALS, strict=True):
                if found is not None and (count := found.counts.get(aspect)):
                    worst = f"{count.worst:.1e}" if count.worst else "0"
                    worst = "" if aspect in NO_NUMBERS else worst
                    made.append([plural + name, str(count.compared), str(count.differ), worst])
        return made

    def data(self) -> dict[str, Any]:
        """Return the conclusion as --json writes it."""
        known = ("script", "nproc", "code", "why", "notes", "seconds")
        first = (self.findings.differences or self.among.differences)[:1]
        return {name: getattr(self, name) for name in known} | {
            "verdict": WORDS[self.code],
            "cause": None if self.cause is None else vars(self.cause),
            "first": [_data(found) for found in first],
            "error": self.tail,
            **_found(self.findings),
            "among ranks": _found(self.among),
            "float64": None if self.wide is None else _found(self.wide),
        }


def _found(findings: Findings) -> dict[str, Any]:
    return {
        "compared": {aspect: vars(count) for aspect, count in findings.counts.items()},
        "differences": [_data(found) for found in findings.differences],
    }


def _data(found: Difference) -> dict[str, Any]:
    """Return a difference for JSON, which has no infinity: a size that is no number's is null."""
    size = None if found.size == OTHER else found.size
    return vars(found) | {"size": size, "told": found.described()}


def first(title: str, names: tuple[str, str], differences: list[Difference]) -> list[str]:
    """Show the first divergence: what differs at its step, with both values."""
    if not differences:
        return []
    start = differences[0]
    together = [d for d in differences if (d.step, d.rank) == (start.step, start.rank)][:TOGETHER]
    rows = [[title + (f", step {start.step}" if start.step else ""), *names, "off by"]]
    rows += [[f"{d.line + ' ' if d.line else ''}{d.what}", d.want, d.got, d.off] for d in together]
    return ["", *aligned(rows)]


def aligned(rows: list[list[str]]) -> list[str]:
    """Align columns, the first to the left and numbers to the right."""
    width = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width[k]) if k == 0 else cell.rjust(width[k]) for k, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]
