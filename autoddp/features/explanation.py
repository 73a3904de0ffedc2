"""After the first steps: what is split, what gathers, what is whole, and why."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from autoddp.patching import Feature
from autoddp.report import Decision
from autoddp.run import Run

STEPS = 3  # after which it is said
LINES = 6  # of each kind; all with -v
KINDS = {
    "loaders": "fetching",
    "split": "split",
    "whole": "by its parts, or whole",
    "gather": "gathers",
}


class Explanation(Feature):
    """One line for each decision, on rank 0's stderr."""

    name = "explanation"
    without = "nothing is said about what runs by rows"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.run, self.steps, self.said = run, 0, False

    def setup(self, undo: ExitStack) -> None:
        """Counts the steps of all optimizers; a script with fewer hears it at its end."""
        undo.callback(self.explain)
        undo.callback(register_optimizer_step_post_hook(self.count).remove)

    def count(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The hook."""
        self.steps += 1
        if self.steps == STEPS:
            self.explain()

    def explain(self) -> None:
        """Say it once."""
        report = self.run.report
        if self.said or not self.run.view.here() or not report.decisions:
            return
        self.said = True
        for kind, title in KINDS.items():
            found = report.of(kind)
            shown = found if self.run.options.verbose else found[:LINES]
            for decision in shown:
                report.say(f"{title}: {_line(decision)}")
            if len(found) > len(shown):
                report.say(f"{title}: {len(found) - len(shown)} more (-v shows them)")
        if not report.of("split"):
            report.say(
                "nothing is split: every rank computes all of it, which is right and no faster. A module is "
                "split when it is called with a batch of at least one row for each rank and proven row-wise"
            )


def _line(decision: Decision) -> str:
    if decision.kind == "gather":
        return f"{decision.where} {decision.what}" + (
            f", {decision.count} times" if decision.count > 1 else ""
        )
    return f"{decision.where}: {decision.what}"
