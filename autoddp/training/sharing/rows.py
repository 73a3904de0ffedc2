"""Batches of which each rank fetches its rows, unless the first one shows that it cannot.

The first rank of a node fetches all of the first batch, as one process does: where anything speaks
against rows, that is the batch, and nothing was done twice there.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from autoddp.comm.accelerator import CPU
from autoddp.comm.context import Code
from autoddp.comm.group import MAX
from autoddp.comm.topology import leaders
from autoddp.errors import Disagreement
from autoddp.training.sampling import Drawn, Resumed, RowSampler, seeds_of
from autoddp.training.sharing.batches import Handed, Source, Whole
from autoddp.training.sharing.course import Course
from autoddp.training.sharing.plan import EACH, ROWS, SHARED, THREAD, Plan
from autoddp.training.watch import DRAWS, OWN
from autoddp.view import ShardedTensor
from autoddp.view.rules.losses import counted

if TYPE_CHECKING:
    from autoddp.training.loaders import Loaders

UNREADABLE = "a sample cannot be fetched"
MORE = "its batches hold more than numbers"
UNLIKE = "its samples are not alike"
REASONS = (UNREADABLE, OWN, DRAWS, MORE)  # by weight


class RowBatches:
    """Batches of which this rank fetches its rows."""

    def __init__(self, job: Loaders, loader: Any, plan: Plan, make: Callable[[], Any]) -> None:
        self.job, self.loader, self.plan, self.make = job, loader, plan, make
        self.instead: Source | None = None
        self.view, self.fetching = job.view, job.fetching
        self.trying = not (plan.known or plan.settled)
        sampler = self.fetching.rows(loader)
        self.leads = False
        if self.trying or job.first.wanted(loader):
            self.leads = job.run.world.rank in leaders(job.run.group)
            sampler.whole = int(self.leads)
            sampler.seen = [] if self.trying else None
        self.seeds = seeds_of(loader)
        self.inner = self.fetching.start(
            loader,
            make,
            draws=job.loading == ROWS and not plan.known,
            watched=None if plan.known else plan.own,
            still=plan.known,
            sampler=sampler,
        )
        # persistent workers keep theirs
        self.sampler: RowSampler = self.inner._index_sampler
        self.sizes = self.sampler.sizes
        self.failed: Exception | None = None

    def next(self) -> Any:
        """Return the next batch."""
        if self.trying:
            self.trying = False
            if not self.view.context.on_script_thread():
                plan = Plan(self.plan.where, EACH, THREAD)
                return self._leave(self.job.said(plan), None, [])
            return self._tried()
        batch, moved = self._fetched()
        if moved and self.plan.late != OWN:
            self.plan.late = moved
        return self._made(batch)

    # ---- the first batch

    def _tried(self) -> Any:
        batch, moved = None, ""
        errors: list[Exception] = []  # emptied, or each is part of a cycle with this frame
        try:
            batch, moved = self._opened(self.fetching.fetch(self.inner, keep=self.leads))
        except StopIteration:
            raise
        except Exception as error:
            errors, moved = [error], self.fetching.moved
            if self.loader.num_workers:  # torch keeps it in a cycle, with all frames that it names
                error.__traceback__ = None
        reason = self._against(batch, bool(errors), moved)
        draws = reason == DRAWS and self.job.loading == ROWS
        if draws:
            self.job.say_draws(self.plan.where)
        if reason and not draws:
            alone = reason == OWN and not self.loader.num_workers
            plan = self.job.part(self.plan, EACH if alone else SHARED, reason)
            try:
                return self._leave(plan, batch, errors)
            finally:
                errors.clear()
        self.job.settle(self.plan, _kinds(batch))
        self.sampler.seen = None
        return self._made(batch)

    def _against(self, batch: Any, failed: bool, moved: str) -> str:
        """Return what speaks against rows on any rank, in words; all ranks call this."""
        leaves, spec = tree_flatten(batch)
        numbers = bool(leaves) and all(isinstance(x, Tensor) and x.dim() for x in leaves)
        numbers = numbers and len({x.shape[0] for x in leaves}) == 1
        mine = {UNREADABLE if failed else "", moved, "" if numbers or failed else MORE}
        kind = repr((spec, [(x.dtype, x.shape[1:]) for x in leaves])) if numbers else ""
        layout = zlib.crc32(kind.encode())
        said = [*(int(reason in mine) for reason in REASONS), layout, -layout]
        found = self.view.group.all_reduce(torch.tensor(said, device=CPU), MAX).tolist()
        seen = [reason for reason, anywhere in zip(REASONS, found, strict=False) if anywhere]
        return seen[0] if seen else "" if found[-2] == -found[-1] else UNLIKE

    def _leave(self, plan: Plan, batch: Any, errors: list[Exception]) -> Any:
        """Return the first batch in another way, in which all others will come."""
        context = self.view.context
        self.sampler.whole = math.inf
        if self.loader.num_workers:
            self.instead = self._begun_again(plan)
            return self.instead.next()
        compare = self.job.comparing(self.loader, plan.where)
        if plan.way == EACH:
            source = self.instead = Whole(self.view, self.inner, compare)
            if not context.on_script_thread():
                return source.next()
        else:
            part = self.job.parting(plan.where)
            taken = self.job.sharing.take_over(self.loader, self.inner, plan.where, plan.own, part)
            source = self.instead = Handed(self.view, taken, compare)
        fetch = self.inner._dataset_fetcher
        with context.within(Code.PLAIN), context.internal():
            if not self.leads:
                batch = fetch.fetch((self.sampler.seen or [None])[0])
            elif plan.way != EACH:
                self._hand_over(source.inner.course, batch, errors)
            if errors and self.leads:
                raise errors.pop()
        compare(batch)
        return source.made(batch)

    def _hand_over(self, course: Course, batch: Any, errors: list[Exception]) -> None:
        """Tell the others of a batch that was fetched before it was known that they need it."""
        course.asked += 1
        outside = self.fetching.outside
        before = None if outside is None else outside.shared
        if errors:
            course.fail(errors[0], before)
        else:
            self.inner._dataset_fetcher.give(batch, before)

    def _begun_again(self, plan: Plan) -> Whole:
        """Begin the pass again with other workers, by the indices that were drawn already."""
        job, loader, where = self.job, self.loader, plan.where
        self.inner._shutdown_workers()
        loader._iterator = None  # of persistent workers
        own, loader.generator = loader.generator, self.seeds
        compare, resumed = job.comparing(loader, where), Resumed(self.sampler)
        try:
            if plan.way == SHARED:
                part = job.parting(where)
                inner = job.sharing.start(loader, self.make, where, plan.own, part, resumed)
                return Handed(self.view, inner, compare)
            with self.fetching.sampled(resumed):
                return Whole(self.view, self.make(), compare)
        finally:
            loader.generator = own

    # ---- all batches

    def _fetched(self) -> tuple[Any, str]:
        """Fetch a batch; after an error that the script caught, other ranks have another one."""
        if self.failed is not None:
            error, self.failed, self.inner = self.failed, None, iter(())
            raise Disagreement(_alone(error)) from error
        try:
            return self._opened(self.fetching.fetch(self.inner))
        except StopIteration:
            raise
        except Exception as error:
            self.failed = error
            raise

    def _opened(self, batch: Any) -> tuple[Any, str]:
        return (batch.batch, batch.said) if type(batch) is Drawn else (batch, self.fetching.moved)

    def _made(self, batch: Any) -> Any:
        """Return a batch as this rank's rows; the first one comes whole where this rank leads."""
        if not self.plan.known and self.plan.kinds is not None and _kinds(batch) != self.plan.kinds:
            raise Disagreement(_other(batch))
        whole, self.sampler.whole = self.leads, 0
        self.leads = False
        if self.job.first.wanted(self.loader):
            self.job.first.compare(self.loader, self.plan.where, batch)
        sizes = self.sizes.popleft()
        if sizes is None:
            return batch
        cuts, known = self.view.shard_sizes(sizes), self.plan.none_ignored

        def rows(x: Any) -> Any:
            mine = cuts.take(x, 0) if whole else x
            return counted(ShardedTensor(mine, cuts), none_ignored=known)

        if type(batch) is list:
            return [rows(x) if type(x) is Tensor else tree_map(rows, x) for x in batch]
        return tree_map(rows, batch)


def _kinds(batch: Any) -> list[Any]:
    """Return the data types of a batch, and what of it is no tensor."""
    flat = batch if type(batch) is list and {*map(type, batch)} == {Tensor} else tree_leaves(batch)
    return [x.dtype if isinstance(x, Tensor) else type(x) for x in flat]


def _other(batch: Any) -> str:
    words = next((type(x).__name__ for x in tree_leaves(batch) if not isinstance(x, Tensor)), "")
    if words:
        return (
            f"a batch of the DataLoader holds a {words} where its first batch held numbers; each "
            "rank fetched its rows alone, and cannot give the script all of it: samples must be "
            "alike, or --loading each has every rank fetch all"
        )
    return (
        "a batch of the DataLoader holds numbers of another type than its first one did, and the "
        "first row of a batch decides: each rank fetched its rows alone; --loading each has every "
        "rank fetch all"
    )


def _alone(error: Exception) -> str:
    return (
        f"a sample raised {type(error).__name__} ({error}), and the script went on: each rank "
        "fetched its rows alone, so other ranks have that batch; --loading each has every rank "
        "fetch all"
    )
