"""Batches of which each rank fetches its rows, unless the first batch shows that it must not.

The first rank of each node fetches all of a data set's first batch: if that rules out rows, it is
the batch that the script gets, and no sample is fetched twice.
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
from autoddp.training.loading.batches import SharedBatches, WholeBatches
from autoddp.training.loading.plan import EACH, ROWS, THREAD, Plan
from autoddp.training.loading.sampling import RowSampler, changed, seeds_of
from autoddp.training.loading.shared_pass import SharedPass
from autoddp.training.loading.watch import DRAWS, OWN, DrawingBatch, new_generators_exist
from autoddp.view import ShardedTensor

if TYPE_CHECKING:
    from autoddp.training.loading.loaders import Loaders

UNREADABLE = "a sample cannot be fetched"
MORE = "its batches hold more than numbers"
UNLIKE = "its samples differ in type or shape"
REASONS = (UNREADABLE, OWN, MORE, UNLIKE, DRAWS)  # the first that holds is reported


class RowBatches:
    """The source of batches of which this rank fetches its rows."""

    def __init__(self, job: Loaders, loader: Any, plan: Plan, make: Callable[[], Any]) -> None:
        self.job, self.loader, self.plan, self.make = job, loader, plan, make
        self.view, self.fetching = job.view, job.fetching
        self.successor: WholeBatches | None = None
        self.trying = not plan.never_draws
        self.own_draws = job.loading == ROWS and self.trying
        # whether this rank fetches the whole first batch
        self.leads = (self.trying and not plan.confirmed) or job.first.wanted(loader)
        self.leads = self.leads and job.run.world.rank in leaders(job.run.group)
        # whether the script gets that batch if it is not by rows
        self.keeps = self.leads and not self.own_draws
        self.seeds = seeds_of(loader)
        self.inner = self.fetching.start(
            loader,
            make,
            own_draws=self.own_draws,
            watched=plan.generators if self.trying else None,
            whole=int(self.leads),
        )
        self.sampler: RowSampler = self.inner._index_sampler  # of persistent workers, the first
        self.sizes, self.kinds = self.sampler.sizes, list[Any]()
        self.failed: Exception | None = None

    def next(self) -> Any:
        """Return the next batch."""
        if self.trying and (self.view.context.on_script_thread() or not self.plan.confirmed):
            self.trying = False
            return self._first()
        batch, moved = self._fetched()
        if moved and self.plan.late_draws != OWN:
            self.plan.late_draws = moved
        return self._wrapped(batch)

    # ---- the first batch

    def _first(self) -> Any:
        if not self.view.context.on_script_thread():
            plan = self.job.report_plan(Plan(self.plan.where, EACH, THREAD))
            return self._fall_back(plan, None, [])
        batch, moved = None, ""
        errors: list[Exception] = []  # emptied at the end, to avoid a cycle
        try:
            batch, moved = self._unwrapped(self.fetching.fetch(self.inner, keep=self.keeps))
        except StopIteration:
            raise
        except Exception as error:
            errors = [error]
            if self.loader.num_workers:  # it is part of a cycle in torch
                error.__traceback__ = None
        known = self.own_draws or self.plan.confirmed or self.loader.num_workers
        if not (moved or known):
            moved = DRAWS if new_generators_exist(self.plan.generators, self.loader.dataset) else ""
        reason = self._objection(batch, bool(errors), moved)
        try:
            other = self.job.decide(self.plan, reason, bool(self.loader.num_workers))
            if other is not None:
                return self._fall_back(other, batch, errors)
        finally:
            errors.clear()
        self.sampler.seen = None
        return self._wrapped(batch)

    def _objection(self, batch: Any, failed: bool, moved: str) -> str:
        """Return the reason of any rank against rows, or an empty string. A collective call."""
        leaves, spec = tree_flatten(batch)
        numbers = bool(leaves) and all(isinstance(x, Tensor) and x.dim() for x in leaves)
        numbers = numbers and len({x.shape[0] for x in leaves}) == 1
        more = MORE if not (numbers or failed) else ""
        reasons = {UNREADABLE if failed else "", moved, self.plan.late_draws, more}
        kind = repr((spec, [(x.dtype, x.shape[1:]) for x in leaves])) if numbers else ""
        layout = zlib.crc32(kind.encode())
        flags = [*(int(reason in reasons) for reason in REASONS), layout, -layout]
        found = self.view.group.all_reduce(torch.tensor(flags, device=CPU), MAX).tolist()
        found[REASONS.index(UNLIKE)] = found[-2] != -found[-1]
        return next((x for x, anywhere in zip(REASONS, found, strict=False) if anywhere), "")

    def _fall_back(self, plan: Plan, batch: Any, errors: list[Exception]) -> Any:
        """Return the first batch in the way of `plan`, and let a successor provide all others."""
        job, context = self.job, self.view.context
        self.sampler.whole, self.sampler.before_fetch = math.inf, lambda: None
        if self.loader.num_workers:
            self.successor = self._restarted(plan)
            return self.successor.next()
        given, shared = (job, self.loader, plan.where, self.inner), None
        if plan.way == EACH:
            self.successor = WholeBatches(*given)
            if not context.on_script_thread():
                return self.successor.next()
        else:
            shared = job.sharing.begin(self.loader, plan)
            job.sharing.take_over(self.inner, shared, plan)
            self.successor = SharedBatches(*given, shared)
        fetch = self.inner._dataset_fetcher
        with context.within(Code.PLAIN), context.internal():
            if not self.keeps:
                batch = fetch.fetch((self.sampler.seen or [None])[0])
            elif shared is not None:
                batch = self._hand_over(shared, batch, errors)
            if errors and self.keeps:
                raise errors.pop()
        return self.successor.checked(batch)

    def _hand_over(self, shared: SharedPass, batch: Any, errors: list[Exception]) -> Any:
        """Send the other ranks the batch or the error that this rank has fetched already."""
        shared.requested += 1
        outside = self.fetching.outside
        before = None if outside is None else outside.shared
        if errors:
            shared.send_error(errors[0], before)
            return batch
        return self.inner._dataset_fetcher.send_batch(batch, before)

    def _restarted(self, plan: Plan) -> WholeBatches:
        """Begin the pass again with new workers, from the indices that were drawn already."""
        loader = self.loader
        self.sampler.resume()
        self.inner._shutdown_workers()
        loader._iterator = None  # of persistent workers
        with changed(loader, generator=self.seeds, batch_sampler=self.sampler):
            return self.job.source(loader, plan, self.make)

    # ---- all batches

    def _fetched(self) -> tuple[Any, str]:
        """Fetch a batch; raise if the script goes on after an error, as other ranks had none."""
        if self.failed is not None:
            error, self.failed, self.inner = self.failed, None, iter(())
            raise Disagreement(
                f"a sample raised {type(error).__name__} ({error}), and the script went on: each "
                "rank fetched its rows alone, so other ranks have that batch; --loading each has "
                "every rank fetch all"
            ) from error
        try:
            return self._unwrapped(self.fetching.fetch(self.inner))
        except StopIteration:
            raise
        except Exception as error:
            self.failed = error
            raise

    def _unwrapped(self, batch: Any) -> tuple[Any, str]:
        drew = type(batch) is DrawingBatch
        batch, moved = (batch.batch, batch.source) if drew else (batch, self.fetching.moved)
        return batch, "" if self.own_draws and moved == DRAWS else moved

    def _wrapped(self, batch: Any) -> Any:
        """Return a batch sharded; the first is whole if this rank fetched all of it."""
        flat = batch if type(batch) is list else tree_leaves(batch)
        kinds = [x.dtype if isinstance(x, Tensor) else type(x) for x in flat]
        self.kinds = self.kinds or kinds
        if kinds != self.kinds:
            raise Disagreement(
                "a batch of the DataLoader holds values of another type than its first batch; each "
                "rank fetched its rows alone: samples must be alike, or --loading each has every "
                "rank fetch all"
            )
        leads, self.leads, self.sampler.whole = self.leads, False, 0
        self.job.first.compare(self.loader, self.plan.where, batch)
        sizes = self.sizes.popleft()
        if sizes is None:
            return batch
        cuts = self.view.shard_sizes(sizes)

        def rows(x: Any) -> Any:
            return ShardedTensor(cuts.shard(x, 0) if leads else x, cuts)

        if type(batch) is list and {*map(type, batch)} == {Tensor}:
            return [rows(x) for x in batch]  # the usual form; three times as fast
        return tree_map(rows, batch)
