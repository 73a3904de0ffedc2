"""Loading of batches: each rank its rows, where that gives the same; else one rank for its node."""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from autoddp.comm.accelerator import CPU
from autoddp.comm.group import MAX
from autoddp.patching import Call, Feature, patch
from autoddp.report import users_line
from autoddp.training.first_batch import FirstBatches
from autoddp.training.sampling import Fetching
from autoddp.training.sharing.batches import Handed, Shared, Source, Waiting, Whole
from autoddp.training.sharing.plan import (
    CHANGES,
    DRAWS,
    EACH,
    ROWS,
    SHARED,
    Plan,
    in_memory,
    none_ignored,
    own_iterator,
    tried,
    unlike_rows,
)
from autoddp.training.sharing.share import Sharing
from autoddp.training.sharing.stamp import DatasetWatch, Stamp

if TYPE_CHECKING:
    from autoddp.effects.run import Run

MUCH = 0.2  # share of the time that is spent waiting
LOOKING = 0.1  # share of the time of fetching that a look whether it changes anything may take
LEAST = 5.0  # seconds of a loader's passes before its waiting is judged
THREAD = "it is iterated in a thread of the script's"


class Loaders(Feature):
    """Loading of data sets: by rows those that draw nothing, the others once on each node.

    Attributes:
        waited: How long batches kept this rank waiting, by a description of their loader.
    """

    name = "loaders"
    without = "every rank loads whole batches"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.view, self.run, self.loading = run.view, run, run.options.loading
        self.plans: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()
        self.waited: dict[str, Waiting] = run.waited
        self.fetching, self.first = Fetching(run), FirstBatches(run)
        self.sharing = Sharing(run, self.fetching)
        self._probed: list[str] = []  # places at which nothing was seen to be drawn
        # what a later sample has shown there, on this rank
        self._noticed: defaultdict[str, set[str]] = defaultdict(set)
        self._shown: dict[str, str] = {}  # what all ranks know of it
        # of loaders whose fetch runs the script's code
        self._looks: weakref.WeakKeyDictionary[Any, DatasetWatch] = weakref.WeakKeyDictionary()

    def setup(self, undo: ExitStack) -> None:
        """Have the end of the script report what was noticed after the last pass."""
        undo.callback(self.sharing.close)
        self.run.group.at_end.append(self._at_end)
        undo.callback(self.run.group.at_end.remove, self._at_end)

    @patch("torch.utils.data:DataLoader.__iter__", why="each rank fetches its rows of every batch")
    def share_batches(self, call: Call) -> Any:
        """Give the loader's batches as this rank's rows, in training and in evaluation.

        Where the plan is that every rank loads all, they come out whole.
        """
        loader = call.instance
        if not self.view.context.is_rank() or torch.utils.data.get_worker_info() is not None:
            return call.wrapped()
        where = f"DataLoader at {users_line()}"
        if self.view.context.in_thread():
            self.run.report.add("loaders", where, Plan(EACH, THREAD).said())
            return call.wrapped()
        plan = self._planned(loader, where)
        waiting = self.waited.setdefault(where, Waiting(workers=loader.num_workers))
        waiting.by_rows = plan.way == ROWS
        self.judge(where)
        first = None if plan.draws else self.first.of(loader, where)
        if plan.way == EACH:
            return Whole(self.view, call.wrapped(), waiting, first)
        if plan.way == SHARED:

            def part(reason: str) -> None:
                self._decide(loader, where, Plan(EACH, reason))

            inner = self.sharing.start(loader, call.wrapped, where, part)
            return Handed(self.view, inner, waiting, first)

        notice = self._noticed[where].add
        inner = self.fetching.start(
            loader,
            call.wrapped,
            plan.draws,
            plan.known,
            None if plan.known or plan.draws else functools.partial(notice, DRAWS),
        )
        none = plan.known and none_ignored(loader.dataset)
        look = self._look(loader, plan)
        source = Source(self.fetching, notice, none, plan.known, look, plan.kinds)
        return Shared(self.view, inner, waiting, source, first)

    @patch(
        "torch.utils.data:DataLoader._index_sampler",
        why="the indices of this rank's rows of every batch, in the script's own order",
        hot=True,
    )
    def rows_of_indices(self, plain: property) -> property:
        """Replace the loader's index sampler by this rank's while an iterator is made."""
        return self.fetching.index_sampler(plain)

    @patch(
        "torch.utils.data:DataLoader._get_iterator",
        why="one rank of a node starts the worker processes of a loader that its ranks share",
    )
    def follow(self, call: Call) -> Any:
        """Make the loader's iterator; on ranks without workers, one that follows the first's."""
        return self.sharing.follower(call.instance, call.wrapped)

    def _planned(self, loader: Any, where: str) -> Plan:
        plan = self.plans.get(loader)
        shown = self._agreed(where) if where in self._probed else ""
        if plan is None:
            plan = self._plan(loader, where)
        elif not shown or plan.way != ROWS or plan.known:
            return plan
        if shown and plan.way == ROWS and not plan.known:
            plan = self._shared(loader, shown)
        return self._decide(loader, where, plan)

    def _look(self, loader: Any, plan: Plan) -> DatasetWatch | None:
        """Return what looks at a data set that this process fetches by the script's own code."""
        if loader.num_workers or not plan.runs:
            return None
        if loader not in self._looks:
            self._looks[loader] = DatasetWatch(loader.dataset, share=LOOKING)
        return self._looks[loader]

    def _decide(self, loader: Any, where: str, plan: Plan) -> Plan:
        self.plans[loader] = plan
        say = (
            self.run.report.say_once
            if plan.way == EACH and self.loading != EACH
            else self.run.report.add
        )
        say("loaders", where, plan.said())
        return plan

    def _plan(self, loader: Any, where: str) -> Plan:
        if self.loading == EACH:
            return Plan(EACH, "--loading each")
        if own_iterator(loader):
            return Plan(EACH, "it is a subclass with an iterator of its own")
        reason = unlike_rows(loader)
        if reason:
            return self._shared(loader, reason)
        if in_memory(loader.dataset):
            return Plan(ROWS, known=True)
        found = self._probe(loader)
        if found.way != ROWS and not found.draws:
            return (
                found
                if found.way == EACH and not loader.num_workers
                else self._shared(loader, found.reason)
            )
        if not found.draws:
            self._probed += [where] * (where not in self._probed)
            return found
        if self.loading != ROWS:
            return self._shared(loader, found.reason)
        self.run.report.doubt(
            "loaders",
            where,
            "its data set draws random numbers: each rank draws its own, statistically the same "
            "(--loading auto gives the numbers of one process)",
        )
        return Plan(ROWS, draws=True)

    def _shared(self, loader: Any, reason: str) -> Plan:
        """Plan to load once on each node where that is possible, else on every rank."""
        alone = self.sharing.meet()
        if not alone and loader.num_workers:
            shared = Stamp(loader.dataset, loader.collate_fn).shared
            alone = f"its workers share {shared} with the script" if shared else ""
        return Plan(EACH, f"{reason}; {alone}") if alone else Plan(SHARED, reason)

    def _probe(self, loader: Any) -> Plan:
        """Plan together with all ranks, by fetching one sample more than one process does."""
        reason, draws, state, runs, kinds = tried(self.view, loader)
        found = torch.tensor([float(bool(reason)), float(draws), float(state)], device=CPU)
        unlike = not reason and not draws
        self.view.group.all_reduce(found, MAX)
        others, drawn, kept = (bool(x) for x in found)
        if unlike and (others or drawn):
            reason = "ranks see different data"
        if kept:
            return Plan(EACH, reason)
        if others:
            return Plan(SHARED, reason)
        reason = "its data set draws random numbers" if drawn else ""
        return Plan(ROWS, reason, drawn, runs=runs, kinds=kinds)

    def _agreed(self, where: str) -> str:
        """Return what any rank has noticed at this place, or nothing; report each place once."""
        if where not in self._shown:
            kinds, noticed = (DRAWS, CHANGES), self._noticed[where]
            mine = torch.tensor([float(kind in noticed) for kind in kinds], device=CPU)
            found = self.view.group.all_reduce(mine, MAX).tolist()
            shown = [kind for kind, anywhere in zip(kinds, found, strict=True) if anywhere]
            if not shown:
                return ""
            self._shown[where] = shown[0]
            self.run.report.doubt(
                "loaders", where, f"{shown[0]}: what it gave up to here is each rank's own"
            )
        return self._shown[where]

    def _at_end(self) -> None:
        """Report waiting, and what was noticed and no further pass has brought up."""
        for waiting in list(self.waited):
            self.judge(waiting)
        for where in self._probed:
            self._agreed(where)

    def judge(self, where: str) -> None:
        """Report a loader that kept ranks waiting for much of the time."""
        waiting = self.waited[where]
        if waiting.total < LEAST or waiting.share < MUCH:
            return
        more = (
            "more of them (num_workers=) help"
            if waiting.workers
            else "num_workers= has them loaded beside"
        )
        settled = waiting.by_rows or self.loading == ROWS
        rows = "" if settled else ", or --loading rows, where each rank draws its own"
        kind = "waiting"
        if all(said.where != where for said in self.run.report.of(kind)):
            self.run.report.say_once(
                kind,
                where,
                f"its batches kept ranks waiting for {waiting.share:.0%} of the time, with "
                f"{waiting.workers} workers; {more}{rows}",
            )
