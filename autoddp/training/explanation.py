"""Explanation of what is split, gathers or is whole, and why; at the end, where the time went."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from autoddp.patching import Feature
from autoddp.report import Decision
from autoddp.training import account
from autoddp.view.work import BACKWARD, SPLIT, WHOLE

if TYPE_CHECKING:
    from autoddp.effects.run import Run

STEPS = 3  # of all optimizers, after which the decisions are printed
LINES = 6  # decisions of each kind that are printed; all with -v
LONG = 5.0  # seconds that a script runs at least to be told at its end where the time went
MUCH = 0.1  # share of that time that is lost at least where advice is given
KINDS = {
    "loaders": "fetching",
    "split": "split",
    "whole": "by its parts, or whole",
    "gather": "gathers",
}


class Explanation(Feature):
    """One line for each decision after the first steps, one for the whole, on rank 0's stderr."""

    name = "explanation"
    without = "nothing is said about what runs by rows, nor where the time went"

    def __init__(self, run: Run) -> None:
        self.run, self.steps, self.said, self.reported = run, 0, False, False
        self.began = perf_counter()

    def setup(self, undo: ExitStack) -> None:
        """Count the steps of all optimizers; a script with too few is told at its end."""
        self.run.ended.append(self.end)
        undo.callback(self.end)
        undo.callback(register_optimizer_step_post_hook(self.count).remove)

    def count(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if self.steps == STEPS:
            self.explain()

    def explain(self) -> None:
        """Print the decisions of the report, once."""
        report = self.run.report
        if (
            self.said
            or not self.run.view.context.is_rank()
            or not report.decisions
            or self.run.options.view != "global"
        ):
            return
        self.said = True
        for kind, title in KINDS.items():
            found = report.of(kind)
            shown = found if self.run.options.verbose else found[:LINES]
            for decision in shown:
                report.say_between(f"{title}: {_line(decision)}")
            if len(found) > len(shown):
                report.say_between(f"{title}: {len(found) - len(shown)} more (-v shows them)")
        if not report.of("split"):
            report.say_between(
                "nothing is split: every rank computes all of it, which is right and no faster. "
                "A module is split when it is called with a batch of at least one row for each "
                "rank and proven row-wise"
            )

    def end(self) -> None:
        """Print what is still due when the script has ended, in whatever way."""
        if self.reported or not self.run.view.context.is_rank():
            return
        self.reported = True
        self.explain()
        report, options = self.run.report, self.run.options
        report.release()
        seconds = perf_counter() - self.began
        mine = account.of(self.run, seconds)
        account.tell(self.run, mine)
        if self.run.world.rank == 0 and (options.summary or options.report is not None):
            report.times = [asdict(times) for times in account.of_all(self.run, mine)]
            report.shared = self.run.view.work.share()
            report.gathered = self.run.group.gathered
        if seconds >= LONG or options.summary:
            report.say_once("account", "", self.sentence(mine))
        if options.summary:
            for line in account.table([account.RankTimes(**times) for times in report.times]):
                report.say(line)

    def sentence(self, mine: account.RankTimes) -> str:
        """Say in one line where the time of this rank went, and what would help most."""
        size, seconds, share = self.run.group.size, mine.seconds, self.run.view.work.share()
        if self.run.options.view == "local":
            shared = "each trained on its own rows"
        elif share is None:
            shared = "no module was called with a batch, so each did all of the computing"
        else:
            shared = f"{share:.0%} of the computing was split between them"
        waits = [(mine.gradients, "for gradients"), (mine.ranks, "for other ranks")]
        waits += [(mine.loader, "for the loader")] * bool(self.run.waited)
        told = ", ".join(f"{spent / seconds:.0%} {whom}" for spent, whom in waits if seconds)
        advice = self.advice(mine, share)
        return (
            f"{size} ranks, {seconds:.0f} s: {shared}; time spent waiting: {told}"
            f"{advice and f'; {advice}'}; `autoddp bench` tells more"
        )

    def advice(self, mine: account.RankTimes, share: float | None) -> str:
        """Return what would help most, where enough of the time is lost; else nothing."""
        size, seconds, work = self.run.group.size, mine.seconds, self.run.view.work.seconds
        waited = mine.gradients + mine.ranks
        lost = {
            "more workers for its loaders (num_workers=) would help most": mine.loader,
            "larger batches, or fewer ranks, would help most": waited,
            "it took long to try modules, once: a longer run loses less by that": mine.proofs,
            "most was lost where modules ran whole, for which the lines above have the reason": (
                work[WHOLE] * (1 - 1 / size)
            ),
        }
        if share is None and self.run.options.view != "local":
            lost["one process is as fast"] = seconds - mine.loader
        hint, most = max(lost.items(), key=lambda entry: entry[1])
        # at most what one process would have had to do besides, whatever these ranks did whole
        saved = (size - 1) * (work[SPLIT] + work[BACKWARD] + mine.loader)
        if share is not None and waited > saved + MUCH * seconds:
            hint = (
                f"one process would have taken {seconds - waited + saved:.0f} s or less: its steps "
                "are too short to be shared; larger batches would help, or fewer ranks"
            )
        return hint if most >= MUCH * seconds else ""


def _line(decision: Decision) -> str:
    """Format a decision so that a reader of metrics in the log takes no count for a loss."""
    if decision.kind != "gather":
        return f"{decision.where}: {decision.what}"
    often = f", {decision.count} times" if decision.count > 1 else ""
    return f"{decision.what} at {decision.where}{often}"
