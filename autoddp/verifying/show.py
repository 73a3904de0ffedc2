"""The progress while runs go on, and the table and the words at the end."""

from __future__ import annotations

from rich.console import Console
from rich.status import Status
from rich.table import Table

from autoddp.report import PREFIX
from autoddp.verifying.causes import shown
from autoddp.verifying.findings import ASPECTS, Findings
from autoddp.verifying.verdict import DIFFERENT, EQUAL, NOT_RUN, Verdict

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


class Progress:
    """One line on a terminal, which goes away; on anything else nothing."""

    def __init__(self, quiet: bool, steps: int | None) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.total = "" if steps is None else f" of {steps}"
        self.status: Status | None = None

    def __call__(self, name: str, steps: int) -> None:
        """A run has come so far."""
        if not self.console.is_terminal or self.console.quiet:
            return
        text = f"{PREFIX.replace('[', chr(92) + '[')} {name}: {steps} steps{self.total}"
        if self.status is None:
            self.status = self.console.status(text)
            self.status.start()
        self.status.update(text)

    def close(self) -> None:
        """Leave the line empty."""
        if self.status is not None:
            self.status.stop()
            self.status = None


def tell(verdict: Verdict) -> None:
    """The table on stdout, then the verdict and what led to it."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if verdict.findings.counts:
        console.print(table(verdict))
    for line in words(verdict):
        console.print(f"{PREFIX} {line}")


def table(verdict: Verdict) -> Table:
    """One row for each thing that was compared."""
    made = Table(title=f"{verdict.script}: 1 process and {verdict.nproc} ranks", title_justify="left")
    made.add_column("compared")
    for name in ("number", "differ", "largest relative difference"):
        made.add_column(name, justify="right")
    rows = [(PLURALS[aspect], verdict.findings, aspect) for aspect in ASPECTS]
    rows += [(f"{PLURALS[a]}, in float64", verdict.wide, a) for a in ASPECTS if verdict.wide is not None]
    for name, findings, aspect in rows:
        if findings is not None and aspect in findings.counts:
            made.add_row(name, *cells(findings, aspect))
    for count in verdict.among.counts.values():
        made.add_row("steps, rank against rank", str(count.compared), str(count.differ), "")
    return made


def cells(findings: Findings, aspect: str) -> tuple[str, str, str]:
    """How many, how many differ, by how much."""
    count = findings.counts[aspect]
    numeric = aspect not in ("steps", "generator", "ending")
    worst = f"{count.worst:.1e}" if count.worst else "0"
    return str(count.compared), str(findings.differ(aspect)), worst if numeric else ""


def words(verdict: Verdict) -> list[str]:
    """The verdict, in lines."""
    lines = []
    if verdict.code == DIFFERENT:
        wide = [] if verdict.wide is None else verdict.wide.differences
        found = verdict.findings.differences or wide or verdict.among.differences
        if found:
            lines += [f"first divergence: {text}" if not i else text for i, text in enumerate(shown(found))]
        if verdict.among.differences and verdict.findings.differences:
            lines.append(f"rank against rank: {verdict.among.differences[0].told()}")
    lines += verdict.tail
    if verdict.cause is not None:
        lines += [f"cause: {verdict.cause.what}", f"what helps: {verdict.cause.mend}"]
    lines += verdict.notes
    word = {EQUAL: "equal", DIFFERENT: "different", NOT_RUN: "could not run"}[verdict.code]
    return [*lines, f"{word}: {verdict.why}"]
