"""Loaders that the first rank of a node runs for all of its ranks.

Without workers, every rank runs the script's iterator and sampler, and only the first rank fetches.
With workers, which only the first rank has, the others step their own sampler as often as it does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_map
from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, default_collate

from autoddp.comm.context import Code
from autoddp.training.loading.batches import WholeBatches
from autoddp.training.loading.plan import Plan
from autoddp.training.loading.shared_pass import LocalBatch, SharedPass
from autoddp.view import ShardedTensor

if TYPE_CHECKING:
    from autoddp.training.loading.loaders import Loaders


class SharedBatches(WholeBatches):
    """Batches that the first rank of a node loads; all ranks of the node begin the pass.

    Args:
        job: The feature.
        loader: The DataLoader.
        plan: The loader's plan.
        make: Returns the loader's own iterator, which is not called where another rank has workers.
    """

    def __init__(self, job: Loaders, loader: Any, plan: Plan, make: Callable[[], Any]) -> None:
        batched = loader._auto_collation and loader.collate_fn is default_collate
        self.shared = SharedPass(job.run, job.link(), plan.where, batched)
        if loader.num_workers and not self.shared.is_first:
            inner = loader._iterator
            inner = FollowerIterator(loader) if inner is None else inner
            if loader.persistent_workers:
                loader._iterator = inner
            inner.begin(loader, self.shared)
        else:
            inner = make()
            if not loader.num_workers:
                self._take_over(inner, plan)
        super().__init__(job, loader, plan.where, inner)

    def _take_over(self, inner: Any, plan: Plan) -> None:
        """Share what an iterator without workers fetches from here on."""
        real, shared = inner._dataset_fetcher, self.shared
        own = [] if isinstance(real.dataset, IterableDataset) else plan.generators or []

        def fetch(index: Any) -> Any:
            context = shared.context
            here = context.within(Code.FETCH) if context.on_script_thread() else nullcontext()
            with context.internal(), here:
                if shared.is_first:
                    return shared.serve(partial(real.fetch, index), own)
                return shared.receive()

        inner._dataset_fetcher = SimpleNamespace(fetch=fetch)

    def load(self) -> Any:
        """Return the next batch, which only the first rank has if it comes from workers."""
        if self.loader.num_workers and self.shared.is_first:
            return self.shared.serve(super().load, from_worker=True)
        return super().load()

    def wrap(self, batch: Any) -> Any:
        """Return what the script gets: a batch of tensors is sharded."""
        if not isinstance(batch, LocalBatch):
            return batch
        sizes = self.job.view.shard_sizes(batch.per_rank)
        return tree_map(lambda x: ShardedTensor(x, sizes), batch.rows)


class FollowerIterator(_BaseDataLoaderIter):
    """The iterator of a loader with workers on ranks other than the first: it has no workers."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        # the sampler of an iterable data set yields nothing but None
        self._steps = not isinstance(loader.dataset, IterableDataset)

    def begin(self, loader: Any, shared: SharedPass) -> None:
        """Begin a pass."""
        self._reset(loader, True)
        self._shared = shared
        for _ in range(loader.prefetch_factor * loader.num_workers):
            self._step()

    def _next_data(self) -> Any:
        self._step()
        batch = self._shared.receive()
        return pin_memory(batch, self._pin_memory_device) if self._pin_memory else batch

    def _step(self) -> None:
        if self._steps:
            next(self._sampler_iter, None)
