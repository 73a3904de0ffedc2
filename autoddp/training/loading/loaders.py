"""The feature that loads each rank's rows where this is exact, else on one rank of each node."""

from __future__ import annotations

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
from autoddp.training.loading.batches import Batches, SharedBatches, WholeBatches
from autoddp.training.loading.first_batch import FirstBatches
from autoddp.training.loading.plan import (
    EACH,
    ROWS,
    SHARED,
    THREAD,
    Plan,
    in_memory,
    own_iterator,
    owner,
    unlike_rows,
)
from autoddp.training.loading.rows import RowBatches
from autoddp.training.loading.sampling import Fetching, changed
from autoddp.training.loading.shared import Sharing
from autoddp.training.loading.watch import DRAWS, OWN, own_generators

if TYPE_CHECKING:
    from autoddp.effects.run import Run

LATE = ", which its first batch did not show: the draws up to here are each rank's own"
APART = "random numbers that its data set draws are each rank's own"


class Loaders(Feature):
    """Loading by rows for data sets that draw nothing, and once on each node for all others."""

    name = "loaders"
    without = "every rank loads whole batches"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.view, self.run, self.loading = run.view, run, run.options.loading
        self.fetching, self.first = Fetching(run), FirstBatches(run)
        self.sharing = Sharing(run, self.report_plan)
        self.plans: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()
        self._confirmed: list[Plan] = []  # in the same order on all ranks

    def setup(self, undo: ExitStack) -> None:
        """Report draws after the last pass at the end of the script."""
        undo.callback(self.sharing.close)
        self.run.group.at_end.append(self._at_end)
        undo.callback(self.run.group.at_end.remove, self._at_end)

    @patch("torch.utils.data:DataLoader.__iter__", why="each rank fetches its rows of every batch")
    def share_batches(self, call: Call) -> Any:
        """Return an iterator over sharded batches, or whole ones if every rank loads all."""
        loader = call.instance
        if not self.view.context.is_rank() or torch.utils.data.get_worker_info() is not None:
            return call.wrapped()
        where = f"DataLoader at {users_line()}"
        if self.view.context.in_thread():
            self.run.report.add("loaders", where, Plan(where, EACH, THREAD).describe())
            return call.wrapped()
        plan = self._planned(loader, where)
        if plan.way != ROWS or plan.never_draws:  # else reported with the first batch
            self.report_plan(plan)
        self.run.waited.setdefault(where, 0.0)
        source = self.source(loader, plan, call.wrapped)
        return Batches(source, where, self.run.waited)

    @patch(
        "torch.utils.data:DataLoader._get_iterator",
        why="one rank of a node starts the worker processes of a loader that its ranks share",
    )
    def follow(self, call: Call) -> Any:
        """Make the loader's iterator; on ranks without workers one that follows the first rank."""
        return self.sharing.follower(call.instance, call.wrapped)

    def source(self, loader: Any, plan: Plan, make: Callable[[], Any]) -> Any:
        """Begin a pass and return the source of its batches."""
        if plan.way == ROWS:
            return RowBatches(self, loader, plan, make)
        if plan.way == SHARED:
            started = self.sharing.start(loader, make, plan)
            return SharedBatches(self, loader, plan.where, *started)
        with changed(loader, in_order=True):  # else each rank gets them in an order of its own
            return WholeBatches(self, loader, plan.where, make())

    # ---- plans

    def _planned(self, loader: Any, where: str) -> Plan:
        if self.loading == EACH:
            return Plan(where, EACH, "--loading each")
        if own_iterator(loader):
            return Plan(where, EACH, "it is a subclass with an iterator of its own")
        reason = unlike_rows(loader)
        if not reason and in_memory(loader.dataset):
            return Plan(where, never_draws=True)
        kept = self.plans.get(owner(loader))
        if kept is None:
            apart = APART if self.loading == ROWS else ""
            kept = Plan(where, reason=apart, generators=own_generators())
            self.plans[owner(loader)] = kept
        kept.where = where
        return replace(kept, way=SHARED, reason=reason) if reason else kept

    def decide(self, plan: Plan, reason: str, workers: bool) -> Plan | None:
        """Decide by the first batch and a `reason` against rows; return another plan, or None."""
        if plan.confirmed and reason in (DRAWS, OWN):
            self.run.report.doubt("loaders", plan.where, reason + LATE)
        plan.late_draws = ""
        if reason:
            # a generator in this process must advance on all ranks
            plan.way, plan.reason = EACH if reason == OWN and not workers else SHARED, reason
            return self.report_plan(plan)
        if not plan.confirmed:
            self._confirmed.append(plan)
        plan.confirmed = True
        self.report_plan(plan)
        return None

    def report_plan(self, plan: Plan) -> Plan:
        """Report a plan and return it."""
        report, loud = self.run.report, plan.way == EACH and self.loading != EACH
        (report.say_once if loud else report.add)("loaders", plan.where, plan.describe())
        return plan

    def _at_end(self) -> None:
        """Report draws in later batches that no further pass has reported."""
        if not self._confirmed:
            return
        local = [float(plan.late_draws != "") for plan in self._confirmed]
        found = self.view.group.all_reduce(torch.tensor(local, device=CPU), MAX).tolist()
        for plan, drew in zip(self._confirmed, found, strict=True):
            if drew:
                self.run.report.doubt("loaders", plan.where, DRAWS + LATE)
