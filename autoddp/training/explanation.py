"""Explanation of what is fetched by rows and what gathers; at the end, where the time went."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from autoddp.patching import Feature
from autoddp.report import Decision
from autoddp.view.work import BACKWARD, SHARDED, WHOLE

if TYPE_CHECKING:
    from autoddp.effects.run import Run

STEPS = 3  # of all optimizers, after which the decisions are printed
LONG = 5.0  # seconds that a script runs at least to be told at its end where the time went
MUCH = 0.1  # share of that time that is lost at least where advice is given
# Functions that the script calls to have all values: they are told with -v alone.
WISHES = frozenset(
    ("numpy", "tolist", "item", "__array__", "__repr__", "__str__", "__format__", "__reduce_ex__")
)
MASKS = frozenset(
    (
        *("index_put", "index_put_", "masked_scatter", "masked_scatter_"),
        *("masked_select", "nonzero", "argwhere"),
    )
)
MASK = "a mask over rows picks from all of them; torch.where and products with the mask do not"
NOTHING = (
    "nothing is sharded: every rank computes all of it, which is right and no faster. A batch is "
    "sharded that has at least one row for each rank"
)
BEHIND = "most was lost behind functions that gather, which the lines above name"
FEW = "most was lost on what every rank computes whole: of fewer rows than ranks, or of no batch"
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


@dataclass(frozen=True)
class RankTimes:
    """The seconds of a rank, by what they went to: the last four add up to the first.

    Attributes:
        seconds: From its start to the end of the script.
        computing: All that is none of the others, the script's own Python included.
        gradients: Waiting for gradients inside of a backward.
        ranks: Waiting for other ranks in all other places.
        loader: Waiting for the batches of loaders.
    """

    seconds: float
    computing: float
    gradients: float
    ranks: float
    loader: float

    @classmethod
    def of(cls, run: Run, seconds: float) -> RankTimes:
        """Return the times of this rank, `seconds` after its start."""
        gradients = run.group.position.waited_in_backward
        ranks = run.group.position.waited - gradients
        loader = sum(run.waited.values())
        computing = max(0.0, seconds - gradients - ranks - loader)
        parts = (seconds, computing, gradients, ranks, loader)
        return cls(*(round(part, 3) for part in parts))


class Explanation(Feature):
    """A few lines on decisions after the first steps, one at the end, on rank 0's stderr."""

    name = "explanation"
    without = "nothing is said about loaders and gathers, nor where the time went"

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
        """Print the decisions of the report, once: one line of each kind, or all with -v."""
        report, verbose = self.run.report, self.run.options.verbose
        if self.said or not self.run.view.context.is_rank() or self.run.options.view != "global":
            return
        self.said = True
        gathers = sorted(report.of("gather"), key=lambda made: -made.size)
        if not verbose:
            gathers = [made for made in gathers if made.what not in WISHES]
        fetching = [f"fetching: {made.where}: {made.what}" for made in report.of("loaders")]
        for told in (fetching, [gathering(made, self.steps) for made in gathers]):
            for line in told if verbose else told[:1]:
                more = f"; {len(told) - 1} more (-v shows them)" if told[1:] and not verbose else ""
                report.say_between(f"{line}{more}")
        if self.run.view.work.share() == 0:
            report.say_between(NOTHING)

    def end(self) -> None:
        """Print what is still due when the script has ended, in whatever way."""
        if self.reported or not self.run.view.context.is_rank():
            return
        self.reported = True
        self.explain()
        report = self.run.report
        report.release()
        mine = RankTimes.of(self.run, perf_counter() - self.began)
        report.times, report.gathered = asdict(mine), self.run.group.gathered
        report.shared = self.run.view.work.share()
        if mine.seconds >= LONG:
            report.say_once("account", "", self.sentence(mine))

    def sentence(self, mine: RankTimes) -> str:
        """Say in one line where the time of this rank went, and what would help most."""
        size, seconds, share = self.run.group.size, mine.seconds, self.run.view.work.share()
        if self.run.options.view == "local":
            shared = "each trained on its own rows"
        elif share is None:
            shared = "no module was called with a batch, so each did all of the computing"
        else:
            shared = f"{share:.0%} of the computing was shared"
        waits = [(mine.gradients, "for gradients"), (mine.ranks, "for other ranks")]
        waits += [(mine.loader, "for the loader")] * bool(self.run.waited)
        told = ", ".join(f"{spent / seconds:.0%} {whom}" for spent, whom in waits if seconds)
        advice = self.advice(mine, share)
        return (
            f"{size} ranks, {seconds:.0f} s: {shared}; time spent waiting: {told}"
            f"{advice and f'; {advice}'}; `autoddp bench` tells more"
        )

    def advice(self, mine: RankTimes, share: float | None) -> str:
        """Return what would help most, where enough of the time is lost; else nothing."""
        size, seconds, work = self.run.group.size, mine.seconds, self.run.view.work.seconds
        waited = mine.gradients + mine.ranks
        lost = {
            "more workers for its loaders (num_workers=) would help most": mine.loader,
            "larger batches, or fewer ranks, would help most": waited,
            BEHIND if self.run.report.of("gather") else FEW: work[WHOLE] * (1 - 1 / size),
        }
        if share is None and self.run.options.view != "local":
            lost["one process is as fast"] = seconds - mine.loader
        hint, most = max(lost.items(), key=lambda entry: entry[1])
        # at most what one process would have had to do besides, whatever these ranks did whole
        saved = (size - 1) * (work[SHARDED] + work[BACKWARD] + mine.loader)
        if share is not None and waited > saved + MUCH * seconds:
            hint = (
                f"one process would have taken {seconds - waited + saved:.0f} s or less: its steps "
                "are too short to be shared; larger batches would help, or fewer ranks"
            )
        return hint if most >= MUCH * seconds else ""


def gathering(made: Decision, steps: int) -> str:
    """Say what gathers, where, how often, how much, and what would keep it sharded if known.

    No count follows a name: a reader of metrics in the log would take it for a loss.
    """
    count, size = made.count, made.size
    a_step = f" a step, {_bytes(size / steps)}" if 0 < steps <= count else f", {_bytes(size)}"
    count = round(count / steps) if 0 < steps <= count else count
    often = "once" if count == 1 else f"{count} times"
    advice = hint(made.what)
    return f"gathers: {made.what} at {made.where}, {often}{a_step}{advice and f'; {advice}'}"


def hint(name: str) -> str:
    """Return what would keep a function sharded that gathers; nothing where that is not known."""
    own = name.removesuffix(".apply")
    if own != name:
        return (
            "if its rows do not depend on each other, @autoddp.rowwise in "
            f"the script, or --rowwise MODULE:{own} for a library's, keeps them sharded"
        )
    return MASK if name in MASKS else ""


def _bytes(size: float) -> str:
    """Format a number of bytes, without a fraction: a reader of metrics would take it for one."""
    return next(
        (f"{size / unit:.0f} {name}" for unit, name in UNITS if size >= unit), f"{size:.0f} B"
    )
