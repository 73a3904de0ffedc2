"""Lines on what is fetched by rows and what gathers; at the end, where the time went."""

from __future__ import annotations

from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from autoddp.patching import Feature
from autoddp.report import Decision

if TYPE_CHECKING:
    from autoddp.effects.run import Run

STEPS = 3  # of all optimizers, after which the decisions are printed
LONG = 5.0  # seconds; a longer run ends with a line about where the time went
# Functions that the script calls to read all values; only -v prints them.
WISHES = frozenset(
    ("numpy", "tolist", "item", "__array__", "__repr__", "__str__", "__format__", "__reduce_ex__")
)
NOTHING = (
    "nothing is sharded: every rank computes all of it, which is right and no faster. A batch is "
    "sharded that has at least one row for each rank"
)
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


class Explanation(Feature):
    """Lines on decisions after the first steps, and one at the end, on the stderr of rank 0."""

    name = "explanation"
    without = "no line is printed about loaders, gathers, and where the time went"

    def __init__(self, run: Run) -> None:
        self.run, self.steps, self.explained, self.reported = run, 0, False, False
        self.began = perf_counter()

    def setup(self, undo: ExitStack) -> None:
        """Count the steps of all optimizers; the end prints what too few have not."""
        self.run.ended.append(self.end)
        undo.callback(self.end)
        undo.callback(register_optimizer_step_post_hook(self.count).remove)

    def count(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if self.steps == STEPS:
            self.explain()

    def explain(self) -> None:
        """Print the decisions of the report, once: one line of each kind, or all with -v."""
        run, report = self.run, self.run.report
        verbose, whole = run.options.verbose, run.options.view == "global"
        if self.explained or not run.view.context.is_rank() or not whole:
            return
        self.explained = True
        gathers = sorted(report.of("gather"), key=lambda made: -made.size)
        if not verbose:
            gathers = [made for made in gathers if made.what not in WISHES]
        shares = not run.view.replicates
        loaders = report.of("loaders") if shares else []
        fetching = [f"fetching: {made.where}: {made.what}" for made in loaders]
        modules = [f"sharding: {made.where}: {made.what}" for made in report.of("modules")]
        for lines in (fetching, modules, [gathering(made, self.steps) for made in gathers]):
            for line in lines if verbose else lines[:1]:
                more = f"; {len(lines) - 1} more (-v shows them)" if len(lines) > 1 else ""
                report.say_between(line if verbose else f"{line}{more}")
        if shares and run.view.work.share() == 0:
            report.say_between(NOTHING)

    def end(self) -> None:
        """Print what is still due when the script has ended, in whatever way."""
        if self.reported or not self.run.view.context.is_rank():
            return
        self.reported = True
        self.explain()
        report = self.run.report
        report.release()
        report.times = times = rank_times(self.run, perf_counter() - self.began)
        report.gathered, report.shared = self.run.group.gathered, self.run.view.work.share()
        if times["seconds"] >= LONG:
            report.say_once("account", "", self.sentence(times))

    def sentence(self, times: dict[str, float]) -> str:
        """Return a line about where the time of this rank went."""
        size, seconds, share = self.run.group.size, times["seconds"], self.run.view.work.share()
        # the local view counts no share, nor does a script without modules
        shared = "" if share is None else f"{share:.0%} of the computing was shared; "
        waits = {"for gradients": "gradients", "for other ranks": "ranks"}
        waits |= {"for the loader": "loader"} if self.run.waited else {}
        waited = ", ".join(
            f"{times[part] / seconds:.0%} {whom}" for whom, part in waits.items() if seconds
        )
        return (
            f"{size} ranks, {seconds:.0f} s: {shared}time spent waiting: {waited}; "
            "`autoddp bench` tells more"
        )


def rank_times(run: Run, seconds: float) -> dict[str, float]:
    """Return the seconds of this rank, by what they went to: the last four add up to the first.

    These are all of them, computing (the script's own Python included), and waiting: for gradients
    inside a backward, for other ranks in all other places, for the batches of loaders.
    """
    gradients, loader = run.group.position.waited_in_backward, sum(run.waited.values())
    ranks = run.group.position.waited - gradients
    computing = max(0.0, seconds - gradients - ranks - loader)
    found = {"seconds": seconds, "computing": computing, "gradients": gradients}
    found |= {"ranks": ranks, "loader": loader}
    return {name: round(value, 3) for name, value in found.items()}


def gathering(made: Decision, steps: int) -> str:
    """Return a line on what gathers, where, how often, how much, and how to keep it sharded.

    No count follows a name: a reader of metrics in the log would take it for a loss.
    """
    a_step = 0 < steps <= made.count
    size, count = (n / steps if a_step else n for n in (made.size, made.count))
    often = ("once" if round(count) == 1 else f"{count:.0f} times") + " a step" * a_step
    function = made.what.removesuffix(".apply")
    advice = (
        "; if its rows do not depend on each other, @autoddp.rowwise in the script, or --rowwise "
        f"MODULE:{function} for a library's, keeps them sharded"
    )
    return f"gathers: {made.what} at {made.where}, {often}, {_bytes(size)}" + (
        advice if function != made.what else ""
    )


def _bytes(size: float) -> str:
    """Format a number of bytes, without a fraction: a reader of metrics would take it for one."""
    return next(f"{size / unit:.0f} {name}" for unit, name in UNITS if size >= unit or unit == 1)
