"""The conclusion of a comparison, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from autoddp.report import PREFIX
from autoddp.tools.options import ToolOptions, aligned
from autoddp.tools.record.recording import GENERATOR, LOSS
from autoddp.tools.verify.findings import ENDING, PRINT, STEPS, Count, Difference, Findings

EQUAL, DIFFERENT, NOT_RUN = 0, 1, 2
WORDS = {EQUAL: "equal", DIFFERENT: "different", NOT_RUN: "could not run"}
# the names of rows of the table, unless it is the aspect with an s
ROWS = {STEPS: STEPS, LOSS: "losses", GENERATOR: "generators' states"}
ROWS |= {ENDING: ENDING, PRINT: "printed lines"}
MAX_SHOWN = 4  # the most differences that are shown of the first step that differs


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(ToolOptions):
    """The options of `autoddp verify` that `autoddp run` does not have."""

    float64: bool = False

    def __post_init__(self) -> None:
        self.check(1, "at least 1 step is compared")


@dataclass
class Conclusion:
    """The conclusion about one script on a number of ranks."""

    script: str
    nproc: int
    code: int = EQUAL
    why: str = ""  # in one sentence
    findings: Findings = field(default_factory=Findings)
    float64: Findings | None = None
    amplified: bool = False  # whether rounding alone makes differences as large, in float64
    cause: str = ""  # with a fix
    error: list[str] = field(default_factory=list)  # its last lines
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def finish(self, tool_options: ToolOptions, quiet: bool) -> int:
        """Print the conclusion, write it to the file of `--json`, and return the exit code."""
        if not quiet:
            print("\n".join(self.lines()))
        tool_options.write(self.data())
        return self.code

    def lines(self) -> list[str]:
        """Return the lines to print: the answer, the cause, and the tables."""
        lines = [f"{PREFIX} {WORDS[self.code]}: {self.why}"]
        lines += [f"{PREFIX} cause: {self.cause}"] * bool(self.cause) + self.error
        wide = self.float64.differences if self.float64 is not None else []
        if self.code == DIFFERENT and (differences := wide or self.findings.differences):
            lines += self.first(differences)
        if self.code != NOT_RUN:
            lines += ["", *aligned(self.table())]
        return lines + [""] * bool(self.notes) + [f"{PREFIX} {note}" for note in self.notes]

    def first(self, differences: list[Difference]) -> list[str]:
        """Return the table of the first step that differs, with both values."""
        step, rank = differences[0].step, differences[0].rank
        title = f"first divergence, step {step}" if step else "first divergence"
        title += " (float64)" * (self.float64 is not None and not self.float64.equal)
        rows = [[title, "one process", f"{self.nproc} ranks", "off by"]]
        for d in [d for d in differences if (d.step, d.rank) == (step, rank)][:MAX_SHOWN]:
            rows.append([f"{d.line + ' ' if d.line else ''}{d.what}", d.want, d.got, d.off])
        return ["", *aligned(rows)]

    def table(self) -> list[list[str]]:
        """Return the table of all aspects that were compared."""
        titles = ["differ", "off by at most"]
        rows = [[f"compared, on {self.nproc} ranks", "number", *titles]]
        if self.float64 is not None:
            rows[0] += [f"in float64: {titles[0]}", titles[1]]
        for aspect, count in self.findings.compared.items():
            row = [ROWS.get(aspect, f"{aspect}s"), str(count.compared)]
            for found in (self.findings, self.float64):
                if found is not None:
                    count = found.compared.get(aspect, Count())
                    row += [str(count.differ), f"{count.worst:.1e}" if count.worst else "0"]
            rows.append(row)
        return rows

    def data(self) -> dict[str, Any]:
        """Return the conclusion as --json writes it."""
        found = replace(self, findings=plain(self.findings), float64=plain(self.float64))
        return {"verdict": WORDS[self.code]} | asdict(found)


def plain(findings: Any) -> Any:
    """Return findings without what was allowed, which is long."""
    return findings and replace(findings, amplified=None)
