"""The feature that loads each rank's rows where this is exact, else on one rank or on each."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from autoddp.comm.accelerator import CPU
from autoddp.comm.context import Code
from autoddp.comm.group import MAX
from autoddp.patching import Call, Feature, patch
from autoddp.report import users_line
from autoddp.training.loading.batches import Batches, WholeBatches
from autoddp.training.loading.first_batch import FirstBatches
from autoddp.training.loading.generators import OWN, holders
from autoddp.training.loading.in_memory import in_memory, needs_no_workers
from autoddp.training.loading.link import NodeLink, connect
from autoddp.training.loading.live import LiveGenerators
from autoddp.training.loading.plan import (
    EACH,
    HERE,
    MORE,
    REASONS,
    ROWS,
    SHARED,
    THREAD,
    Plan,
    hands_out,
    own_iterator,
    owner,
    unlike_rows,
)
from autoddp.training.loading.rows import RowBatches
from autoddp.training.loading.sampling import Fetching, changed, seeds_of
from autoddp.training.loading.shared import SharedBatches

if TYPE_CHECKING:
    from autoddp.effects.run import Run

LATE = ", which its first batch did not show: the draws up to here are each rank's own"
APART = "random numbers that its data set draws are each rank's own"


class Loaders(Feature):
    """Loading by rows for data sets that draw nothing, else once on each node, or on each rank."""

    name = "loaders"
    without = "every rank loads whole batches"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.view, self.run, self.loading = run.view, run, run.options.loading
        self.live = LiveGenerators()
        self.fetching, self.first = Fetching(run, self.live), FirstBatches(run)
        self.plans: weakref.WeakKeyDictionary[Any, dict[str, Plan]] = weakref.WeakKeyDictionary()
        self.ways = weakref.WeakKeyDictionary[Any, str]()  # of persistent workers
        self._confirmed: list[Plan] = []  # in the same order on all ranks
        self._link: NodeLink | None = None  # once a loader is shared

    def setup(self, undo: ExitStack) -> None:
        """Watch for new generators; report draws after the last pass at the end of the script."""
        self._undo = undo
        self.live.watch(undo)
        self.run.group.at_end.append(self._at_end)
        undo.callback(self.run.group.at_end.remove, self._at_end)

    @patch("torch.utils.data:DataLoader.__iter__", why="each rank fetches its rows of every batch")
    def share_batches(self, call: Call) -> Any:
        """Return an iterator over sharded batches, or whole ones if every rank loads all."""
        loader = call.instance
        context = self.view.context
        if not context.is_rank():
            return call.wrapped()
        where, thread = f"DataLoader at {users_line()}", context.in_thread()
        if thread:
            self.run.report.add("loaders", where, Plan(where, EACH, THREAD).describe())
        # a data set that loads is on the ranks that fetch its samples
        if thread or context.depth[Code.PLAIN] or context.depth[Code.FETCH]:
            with self._fitting(loader, EACH):
                return call.wrapped()
        plan = self._planned(loader, where)
        if plan.way != ROWS or plan.confirmed:  # else reported with the first batch
            self.report_plan(plan)
        self.run.waited.setdefault(where, 0.0)
        source = self.source(loader, plan, call.wrapped)
        return Batches(source, where, self.run.waited)

    def source(self, loader: Any, plan: Plan, make: Callable[[], Any]) -> Any:
        """Begin a pass and return the source of its batches."""
        where = plan.where
        # any order of batches is allowed, and ranks need the same
        with self._fitting(loader, plan.way), changed(loader, in_order=True):
            if plan.way == ROWS:
                return RowBatches(self, loader, plan, make)
            if plan.way == SHARED:
                return SharedBatches(self, loader, plan, make)
            return WholeBatches(self, loader, where, make())

    @contextmanager
    def _fitting(self, loader: Any, way: str) -> Iterator[None]:
        """Begin a pass inside; persistent workers that load in another way start anew.

        The script's generator does not advance by the seeds of new ones.
        """
        inner, changes = loader._iterator, {}
        if inner is not None and self.ways.get(inner) != way:
            getattr(inner, "_shutdown_workers", int)()  # where another rank loads there are none
            loader._iterator, changes = None, {"generator": seeds_of(loader)}
        with changed(loader, **changes):
            yield
        if loader._iterator is not None:
            self.ways[loader._iterator] = way

    def link(self) -> NodeLink:
        """Return the connections of the node; its ranks connect at the first call, together."""
        if self._link is None:
            self._link = connect(self.run)
            self._undo.callback(self._link.close)
        return self._link

    # ---- plans

    def _planned(self, loader: Any, where: str) -> Plan:
        if self.loading == EACH:
            return Plan(where, EACH, "--loading each")
        if own_iterator(loader):
            return Plan(where, EACH, "it is a subclass with an iterator of its own")
        unlike = unlike_rows(loader)
        if not unlike and in_memory(loader.dataset):
            ranks = self.run.world.world_size  # not of a node: all have to decide alike
            here = loader.num_workers > 0 and needs_no_workers(loader, ranks)
            return Plan(where, ROWS, HERE if here else "", confirmed=True, here=here)
        plans = self.plans.setdefault(owner(loader), {})
        if unlike not in plans:
            apart = APART if self.loading == ROWS else ""
            own = self.live.new(*holders(loader))
            plans[unlike] = Plan(where, ROWS, apart, unlike, generators=own)
        plan = plans[unlike]
        plan.where = where
        streams = isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None
        if hands_out(loader):  # what the script writes into these has to be there on all ranks
            return replace(plan, way=EACH, reason=unlike)
        if unlike and (loader.num_workers or streams):
            return replace(plan, way=SHARED, reason=unlike)
        if plan.confirmed:
            self.decide(plan, plan.late_draws, loader.num_workers > 0)
        return plan

    def decide(self, plan: Plan, reason: str, workers: bool) -> None:
        """Decide by a `reason` of any rank against rows. A collective call."""
        mine = torch.tensor([REASONS.index(reason)], device=CPU)
        reason = REASONS[int(self.view.group.all_reduce(mine, MAX).item())]
        if plan.confirmed and reason:
            self.run.report.doubt("loaders", plan.where, reason + LATE)
        elif not (plan.confirmed or reason):
            self._confirmed.append(plan)
        if reason:
            # a generator in this process must advance on all ranks
            plan.way = EACH if reason == OWN and not workers else SHARED
            plan.reason = plan.unlike if plan.unlike and reason == MORE else reason
        plan.confirmed = not reason

    def report_plan(self, plan: Plan) -> Plan:
        """Report a plan and return it."""
        loud = plan.way == EACH and self.loading != EACH and not plan.unlike
        report = self.run.report
        (report.say_once if loud else report.add)("loaders", plan.where, plan.describe())
        return plan

    def _at_end(self) -> None:
        """Report draws in later batches that no further pass has reported."""
        for plan in self._confirmed:
            if plan.confirmed:
                self.decide(plan, plan.late_draws, False)
