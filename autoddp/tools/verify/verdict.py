"""The conclusion from all that was compared, as it is shown and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autoddp.report import PREFIX
from autoddp.tools.record.recording import GENERATOR, LOSS
from autoddp.tools.told import ToolOptions, aligned
from autoddp.tools.verify.causes import Cause
from autoddp.tools.verify.findings import ENDING, OTHER, PRINT, STEPS, Difference, Findings

EQUAL, DIFFERENT, NOT_RUN = 0, 1, 2
WORDS = {EQUAL: "equal", DIFFERENT: "different", NOT_RUN: "could not run"}
# the rows of the table, where it is not the aspect with an s
ROWS = {STEPS: STEPS, LOSS: "losses", GENERATOR: "generators' states"}
ROWS |= {ENDING: ENDING, PRINT: "printed lines"}
NO_NUMBERS = (STEPS, GENERATOR, ENDING)
TOGETHER = 4  # differences of the first step that differs that are shown


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
    wide: Findings | None = None  # in float64
    cause: Cause | None = None
    tail: list[str] = field(default_factory=list)  # the end of an error
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def finish(self, wanted: ToolOptions, quiet: bool) -> int:
        """Print and write the conclusion as wanted, and return its exit code."""
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
        wide = self.wide.differences if self.wide is not None else []
        if self.code == DIFFERENT and (differences := wide or self.findings.differences):
            found += self.first(differences)
        if self.code != NOT_RUN:
            found += ["", *aligned(self.table())]
        return found + [""] * bool(self.notes) + [f"{PREFIX} {note}" for note in self.notes]

    def first(self, differences: list[Difference]) -> list[str]:
        """Show the first divergence: what differs at its step, with both values."""
        step, rank = differences[0].step, differences[0].rank
        title = f"first divergence, step {step}" if step else "first divergence"
        rows = [[title, "one process", f"{self.nproc} ranks", "off by"]]
        for d in [d for d in differences if (d.step, d.rank) == (step, rank)][:TOGETHER]:
            rows.append([f"{d.line + ' ' if d.line else ''}{d.what}", d.want, d.got, d.off])
        return ["", *aligned(rows)]

    def table(self) -> list[list[str]]:
        """Make one row for each aspect that was compared, below a row of titles."""
        made = [["compared", "number", "differ", "off by at most"]]
        for name, found in ("", self.findings), (", in float64", self.wide):
            for aspect, count in found.counts.items() if found is not None else ():
                worst = f"{count.worst:.1e}" if count.worst else "0"
                worst = "" if aspect in NO_NUMBERS else worst
                plural = ROWS.get(aspect, f"{aspect}s")
                made.append([plural + name, str(count.compared), str(count.differ), worst])
        return made

    def data(self) -> dict[str, Any]:
        """Return the conclusion as --json writes it."""
        known = ("script", "nproc", "code", "why", "notes", "seconds")
        return {name: getattr(self, name) for name in known} | {
            "verdict": WORDS[self.code],
            "cause": None if self.cause is None else vars(self.cause),
            "first": [_data(found) for found in self.findings.differences[:1]],
            "error": self.tail,
            **_found(self.findings),
            "float64": None if self.wide is None else _found(self.wide),
        }


def _found(findings: Findings) -> dict[str, Any]:
    return {
        "compared": {aspect: vars(count) for aspect, count in findings.counts.items()},
        "differences": [_data(found) for found in findings.differences],
    }


def _data(found: Difference) -> dict[str, Any]:
    """Return a difference for JSON, which has no infinity: a size that is no number is null."""
    size = None if found.size == OTHER else found.size
    return vars(found) | {"size": size, "told": found.described()}
