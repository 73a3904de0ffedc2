"""Batches of which each rank fetches its rows, unless the first batch shows that it must not.

Every rank fetches all of a data set's first batch. If that rules out rows, the script gets it, or
that of the node's first rank, and no rank fetches a sample twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from autoddp.errors import Disagreement
from autoddp.training.loading.batches import WholeBatches
from autoddp.training.loading.generators import DRAWS, OWN, DrawingBatch, holders
from autoddp.training.loading.plan import EACH, MORE, REASONS, ROWS, THREAD, Plan
from autoddp.training.loading.sampling import RowSampler, changed, seeds_of
from autoddp.training.loading.shared import SharedBatches
from autoddp.training.loading.targets import note_ignored
from autoddp.view import ShardedTensor
from autoddp.view.redistribute import all_gather_rows

if TYPE_CHECKING:
    from autoddp.training.loading.loaders import Loaders


class RowBatches:
    """The source of batches of which this rank fetches its rows."""

    def __init__(self, job: Loaders, loader: Any, plan: Plan, make: Callable[[], Any]) -> None:
        self.job, self.loader, self.plan, self.make = job, loader, plan, make
        self.view, self.fetching = job.view, job.fetching
        self.successor: WholeBatches | None = None
        self.trying = not plan.confirmed
        self.own_draws = job.loading == ROWS and plan.generators is not None
        self.draws = plan.generators is not None and not loader.num_workers
        self.seeds = seeds_of(loader)
        # workers read ahead
        first = self.trying or job.first.wanted(loader)  # the first batch, on every rank
        whole = (1 if loader.num_workers else math.inf) if first else 0
        start, own = self.fetching.start, self.own_draws
        self.inner = start(loader, make, own, plan.generators, whole, plan.here)
        self.sampler: RowSampler = self.inner._index_sampler  # of persistent workers, the first
        self.sizes, self.kinds = self.sampler.sizes, list[Any]()
        self.failed: Exception | None = None

    def next(self) -> Any:
        """Return the next batch."""
        if self.trying:
            return self._first()
        sampler = self.sampler
        # after the first batch, which is compared
        if sampler.in_memory and not sampler.whole and self.fetching.replicates():
            return self._whole()
        batch, moved = self._fetched()
        if moved and self.plan.late_draws != OWN:
            self.plan.late_draws = moved
        return self._wrapped(batch)

    # ---- the first batch

    def _first(self) -> Any:
        if not self.view.context.on_script_thread():
            return self._fall_back(self.job.report_plan(Plan(self.plan.where, EACH, THREAD)), None)
        workers = self.loader.num_workers > 0
        if workers:
            batch, moved = self._fetched()
        else:  # an error is raised on every rank, and the next batch decides
            self.sizes.clear()
            batch, moved = self._fetched_alike()
        if not (moved or self.own_draws or workers):
            made = self.job.live.new(*holders(self.loader), since=self.plan.generators or [])
            moved = OWN if made else ""
        leaves = tree_leaves(batch)
        tensors = bool(leaves) and all(isinstance(x, Tensor) and x.dim() for x in leaves)
        alike = tensors and len({x.shape[0] for x in leaves}) == 1
        more = "" if alike and not self.plan.unlike else MORE
        self.job.decide(self.plan, max(moved, more, key=REASONS.index), workers)
        plan, self.trying = self.job.report_plan(self.plan), False
        return self._wrapped(batch) if plan.way == ROWS else self._fall_back(plan, batch)

    def _fall_back(self, plan: Plan, batch: Any) -> Any:
        """Return the first batch in the way of `plan`, and let a successor provide all others."""
        job = self.job
        self.sampler.whole, self.sampler.before_fetch = math.inf, None
        if self.loader.num_workers:
            self.successor = self._restarted(plan)
            return self.successor.next()
        if plan.way == EACH:
            self.successor = WholeBatches(job, self.loader, plan.where, self.inner)
            return self.successor.next() if plan.reason == THREAD else self.successor.checked(batch)
        self.successor = SharedBatches(job, self.loader, plan, lambda: self.inner)
        shared = self.successor.shared
        # not this rank's: a collate function may keep state, as a vocabulary that grows
        found = (
            shared.serve(lambda: batch, all_states=True) if shared.is_first else shared.receive()
        )
        return self.successor.checked(found)

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
            return self._fetched_alike()
        except StopIteration:
            raise
        except Exception as error:
            self.failed = error
            raise

    def _fetched_alike(self) -> tuple[Any, str]:
        batch = self.fetching.fetch(self.inner, self.draws)
        drew = type(batch) is DrawingBatch
        batch, moved = (batch.batch, batch.source) if drew else (batch, self.fetching.moved)
        return batch, "" if self.own_draws and moved == DRAWS else moved

    def _whole(self) -> Any:
        """Return a batch of what is in memory where ranks share no work."""
        try:
            batch = next(self.inner)
        except Exception:  # which all ranks get, and after which a script may go on
            if self.sizes:
                self.sizes.popleft()
            raise
        if self.sizes[0][1]:  # the sampler was ahead
            return self._wrapped(batch)
        self.sizes.popleft()
        return batch

    def _wrapped(self, batch: Any) -> Any:
        """Return a batch sharded, or whole where the placement asks for it."""
        flat = batch if type(batch) is list else tree_leaves(batch)
        kinds = [x.dtype if isinstance(x, Tensor) else type(x) for x in flat]
        self.kinds = self.kinds or kinds
        if kinds != self.kinds:
            raise Disagreement(
                "a batch of the DataLoader holds values of another type than its first batch; each "
                "rank fetched its rows alone: samples must be alike, or --loading each has every "
                "rank fetch all"
            )
        self.sampler.whole, self.sampler.seen = 0, None
        self.job.first.compare(self.loader, self.plan.where, batch)
        (sizes, cut, indices), replicated = self.sizes.popleft(), self.fetching.replicates()
        if sizes is None or (replicated and not cut):
            return batch
        cuts, counts = self.view.shard_sizes(sizes), self.view.counts

        def rows(x: Any) -> Any:
            if replicated:  # but fetched by rows, as fetching is what takes long
                return all_gather_rows(x, cuts, 0)
            row = ShardedTensor(x if cut else cuts.shard(x, 0), cuts)
            if counts is not None and not self.sampler.in_memory:
                counts.fetch(row)
            return row

        if type(batch) is list and {*map(type, batch)} == {Tensor}:
            made = [rows(x) for x in batch]  # the usual form; three times as fast
            if self.view.ignored is not None and self.sampler.in_memory:
                note_ignored(made, self.loader.dataset, indices, self.view.ignored)
            return made
        return tree_map(rows, batch)
