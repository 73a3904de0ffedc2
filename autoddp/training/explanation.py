"""Explanation of what is split, gathers or is whole, and why; at the end, where the time went."""

from __future__ import annotations

from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from autoddp.patching import Feature
from autoddp.report import Decision
from autoddp.view.work import BACKWARD, SPLIT, TRIAL, WHOLE

if TYPE_CHECKING:
    from autoddp.process.run import Run

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
        self.run.report.release()
        seconds = perf_counter() - self.began
        if seconds >= LONG:
            self.run.report.say_once("account", "", self.account(seconds))

    def account(self, seconds: float) -> str:
        """Say in one line where the time of this rank went, and what would help most."""
        group, work = self.run.group, self.run.view.work
        loading = sum(waiting.seconds for waiting in self.run.waited.values())
        waited, share = group.position.waited, work.share()
        lost = {
            "more workers for its loaders (num_workers=) would help most": loading,
            "larger batches, or fewer ranks, would help most": waited,
            "it took long to try modules, once: a longer run loses less by that": (
                work.seconds[TRIAL]
            ),
            "most was lost where modules ran whole, for which the lines above have the reason": (
                work.seconds[WHOLE] * (1 - 1 / group.size)
            ),
        }
        if self.run.options.view == "local":
            shared = "each rank worked on its rows"
        elif share is None:
            shared = "no module was called with a batch: every rank did all of the work"
            lost["one process is as fast"] = seconds - loading
        else:
            shared = (
                f"{share:.0%} of the work in modules was split over {group.size} ranks, after "
                f"{work.seconds[TRIAL]:.1f} s of proofs"
            )
        hint, most = max(lost.items(), key=lambda entry: entry[1])
        # at most what one process would have had to do besides, whatever these ranks did whole
        saved = (group.size - 1) * (work.seconds[SPLIT] + work.seconds[BACKWARD] + loading)
        if share is not None and waited > saved + MUCH * seconds:
            hint = (
                f"one process would have taken {seconds - waited + saved:.0f} s or less: its steps "
                "are too short to be shared; larger batches would help, or fewer ranks"
            )
        loaders = f"{loading:.1f} s for loaders and " if self.run.waited else ""
        advice = f"; {hint}" if most >= MUCH * seconds else ""
        return (
            f"in {seconds:.0f} s, {shared}; waited {loaders}{waited:.1f} s for other ranks, "
            f"gathered {_size(group.gathered)}{advice}"
        )


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.0f} GB"


def _line(decision: Decision) -> str:
    """Format a decision so that a reader of metrics in the log takes no count for a loss."""
    if decision.kind != "gather":
        return f"{decision.where}: {decision.what}"
    often = f", {decision.count} times" if decision.count > 1 else ""
    return f"{decision.what} at {decision.where}{often}"
