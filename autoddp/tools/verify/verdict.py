"""The conclusion from all that was compared, as it is shown and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autoddp.report import PREFIX
from autoddp.tools.told import ToolOptions, aligned
from autoddp.tools.verify.causes import Cause
from autoddp.tools.verify.findings import (
    ENDING,
    FILE,
    GENERATOR,
    GRADIENT,
    LOSS,
    OTHER,
    PARAMETER,
    PRINT,
    RATE,
    STEPS,
    Difference,
    Findings,
)

EQUAL, DIFFERENT, NOT_RUN = 0, 1, 2
WORDS = {EQUAL: "equal", DIFFERENT: "different", NOT_RUN: "could not run"}
# the rows of the table, as each is called there
ROWS = {STEPS: "steps", LOSS: "losses", RATE: "learning rates", GRADIENT: "gradients"}
ROWS |= {PARAMETER: "parameters", GENERATOR: "generators' states", ENDING: "exit code"}
ROWS |= {PRINT: "printed lines", FILE: "files"}
NO_NUMBERS = (STEPS, GENERATOR, ENDING)
TOGETHER = 4  # at most so many differences of the first step that differs are shown


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(ToolOptions):
    """The options of `autoddp verify` that `autoddp run` has not."""

    float64: bool = False

    def __post_init__(self) -> None:
        self.check(1, "at least 1 step is compared")


@dataclass
class Conclusion:
    """The conclusion on one script, run on some number of ranks."""

    script: str
    nproc: int
    code: int = EQUAL
    why: str = ""  # in one sentence
    findings: Findings = field(default_factory=Findings)
    among: Findings = field(default_factory=Findings)
    wide: Findings | None = None  # one process against the ranks in float64
    cause: Cause | None = None
    tail: list[str] = field(default_factory=list)  # the end of an error
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def finish(self, wanted: ToolOptions, quiet: bool) -> int:
        """Tell the conclusion in the ways that are wanted, and return its exit code."""
        if not quiet:
            print("\n".join(self.lines()))
        wanted.write(self.data())
        return self.code

    def lines(self) -> list[str]:
        """Return the lines to print: the answer first, then what led to it."""
        found = [f"{PREFIX} {WORDS[self.code]}: {self.why}"]
        if self.cause is not None:
            found += [f"{PREFIX} cause: {self.cause.what}"]
            found += [f"{PREFIX} what helps: {self.cause.mend}"]
        found += self.tail
        if self.code == DIFFERENT:
            others, names = self.among.differences, ("one process", f"{self.nproc} ranks")
            apart = "rank 0", f"rank {others[0].rank}" if others else ""
            wide = self.wide is not None and self.wide.differences
            found += first("ranks part", apart, others)
            found += first("first divergence", names, wide or self.findings.differences)
        if self.code != NOT_RUN:
            found += ["", *aligned(self.table())]
        return found + [""] * bool(self.notes) + [f"{PREFIX} {note}" for note in self.notes]

    def table(self) -> list[list[str]]:
        """Make one row for each thing that was compared, below a row of titles."""
        made = [["compared", "number", "differ", "off by at most"]]
        kinds = ("", self.findings), (", in float64", self.wide), (" of ranks", self.among)
        for name, found in kinds:
            for aspect, plural in ROWS.items():
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
