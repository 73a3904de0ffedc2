"""Loading of batches: each rank its rows, where that gives the same; else one rank for its node."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from autoddp.comm.accelerator import CPU
from autoddp.comm.group import MAX
from autoddp.patching import Call, Feature, patch
from autoddp.report import users_line
from autoddp.training.first_batch import FirstBatches
from autoddp.training.sampling import Fetching
from autoddp.training.sharing.batches import Batches, Handed, Source, Whole
from autoddp.training.sharing.plan import (
    EACH,
    ROWS,
    SHARED,
    THREAD,
    Plan,
    in_memory,
    none_ignored,
    own_iterator,
    owner,
    unlike_rows,
)
from autoddp.training.sharing.rows import RowBatches
from autoddp.training.sharing.share import Sharing
from autoddp.training.watch import DRAWS, OWN, own_generators

if TYPE_CHECKING:
    from autoddp.effects.run import Run

LATE = ", which its first batch did not show: what it gave up to here is each rank's own"
APART = (
    f"{DRAWS}: each rank draws its own, statistically the same (--loading auto gives the numbers "
    "of one process)"
)


class Loaders(Feature):
    """Loading of data sets: by rows those that draw nothing, the others once on each node."""

    name = "loaders"
    without = "every rank loads whole batches"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.view, self.run, self.loading = run.view, run, run.options.loading
        self.fetching, self.first = Fetching(run), FirstBatches(run)
        self.sharing = Sharing(run, self.fetching)
        self.plans: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()
        self._all: list[Plan] = []  # in one order on all ranks

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
            self.run.report.add("loaders", where, Plan(where, EACH, THREAD).said())
            return call.wrapped()
        plan = self._planned(loader, where)
        if plan.way != ROWS or plan.known or plan.settled:  # else the first batch tells
            self.said(plan)
        self.run.waited.setdefault(where, 0.0)
        return Batches(self._source(loader, plan, call.wrapped), where, self.run.waited)

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

    # ---- plans

    def _source(self, loader: Any, plan: Plan, make: Callable[[], Any]) -> Source:
        """Return where a pass's batches come from."""
        if plan.way == ROWS:
            return RowBatches(self, loader, plan, make)
        compare = self.comparing(loader, plan.where)
        if plan.way == EACH:
            return Whole(self.view, make(), compare)
        part = self.parting(plan.where)
        return Handed(
            self.view, self.sharing.start(loader, make, plan.where, plan.own, part), compare
        )

    def _planned(self, loader: Any, where: str) -> Plan:
        if self.loading == EACH:
            return Plan(where, EACH, "--loading each")
        if own_iterator(loader):
            return Plan(where, EACH, "it is a subclass with an iterator of its own")
        reason, dataset = unlike_rows(loader), loader.dataset
        if not reason and in_memory(dataset):
            return Plan(where, known=True, none_ignored=none_ignored(dataset))
        kept = self.plans.get(owner(loader))
        if kept is None:
            kept = self.plans[owner(loader)] = Plan(where, own=own_generators(dataset))
        if reason:
            return self._shared(replace(kept, where=where, way=SHARED, reason=reason))
        if kept.settled and (late := self._agreed([kept])[0]):
            self.part(kept, EACH if late == OWN and not loader.num_workers else SHARED, late)
        kept.where = where
        return kept

    def settle(self, plan: Plan, kinds: list[Any]) -> None:
        """Note that the first batch of a data set has come by rows."""
        plan.settled, plan.kinds = True, kinds
        self._all.append(self.said(plan))

    def _shared(self, plan: Plan) -> Plan:
        """Load once on each node where that is possible, else on every rank."""
        alone = self.sharing.meet() if plan.way == SHARED else ""
        if alone:
            plan.way, plan.reason = EACH, f"{plan.reason}; {alone}"
        return plan

    def part(self, plan: Plan, way: str, reason: str) -> Plan:
        """Have a data set loaded in another way from now on; all ranks call this."""
        plan.way, plan.reason = way, reason
        return self.said(self._shared(plan))

    def parting(self, where: str) -> Callable[[str], None]:
        """Return what notes that every rank loads for itself, given why."""

        def part(reason: str) -> None:
            self.said(Plan(where, EACH, reason))

        return part

    def comparing(self, loader: Any, where: str) -> Callable[[Any], None]:
        """Return what compares a loader's first batch over the nodes."""
        return functools.partial(self.first.compare, loader, where)

    def said(self, plan: Plan) -> Plan:
        """Report a plan, and return it."""
        report, loud = self.run.report, plan.way == EACH and self.loading != EACH
        (report.say_once if loud else report.add)("loaders", plan.where, plan.said())
        return plan

    def say_draws(self, where: str) -> None:
        """Say that each rank draws its own numbers, as it was told to."""
        self.run.report.doubt("loaders", where, APART)

    # ---- what later fetches show

    def _agreed(self, plans: list[Plan]) -> list[str]:
        """Return what later fetches drew from on any rank, for each plan; report it once."""
        mine = [float(plan.late == kind) for plan in plans for kind in (OWN, DRAWS)]
        found = self.view.group.all_reduce(torch.tensor(mine, device=CPU), MAX).view(-1, 2).tolist()
        late = [OWN if own else DRAWS if draws else "" for own, draws in found]
        for plan, kind in zip(plans, late, strict=True):
            plan.late = ""
            if kind == DRAWS and self.loading == ROWS:
                self.say_draws(plan.where)
            elif kind:
                self.run.report.doubt("loaders", plan.where, kind + LATE)
        return ["" if kind == DRAWS and self.loading == ROWS else kind for kind in late]

    def _at_end(self) -> None:
        """Report what was noticed and no further pass has brought up."""
        if self._all:
            self._agreed(self._all)
