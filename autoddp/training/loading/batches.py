"""The iterator that replaces a DataLoader's, and batches that arrive whole on a rank."""

from __future__ import annotations

from time import perf_counter  # the script's is patched
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_map

from autoddp.training.iterator import LoaderIterator
from autoddp.training.loading.shared_pass import LocalBatch, SharedPass
from autoddp.view import ShardedTensor

if TYPE_CHECKING:
    from autoddp.training.loading.loaders import Loaders


class Batches(LoaderIterator):
    """The iterator that a script gets from a DataLoader.

    Its source may name a `successor` at the first batch, which provides all others.
    """

    def __init__(self, source: Any, where: str, waited: dict[str, float]) -> None:
        self.source, self.where, self.waited = source, where, waited

    @property
    def inner(self) -> Any:
        """Return the loader's own iterator, which has all other attributes."""
        return self.source.inner

    def __next__(self) -> Any:
        began = perf_counter()
        try:
            return self.source.next()
        finally:
            self.source = self.source.successor or self.source
            self.waited[self.where] += perf_counter() - began


class WholeBatches:
    """Batches that every rank loads; modules called by the data set are not sharded."""

    successor = None

    def __init__(self, job: Loaders, loader: Any, where: str, inner: Any) -> None:
        self.job, self.loader, self.where, self.inner = job, loader, where, inner

    def next(self) -> Any:
        """Return the next batch."""
        batch = self.load()
        here = self.job.view.context.on_script_thread()
        return self.checked(batch) if here else self.wrap(batch)

    def load(self) -> Any:
        """Return the next batch of the loader."""
        return self.job.fetching.fetch(self.inner)

    def checked(self, batch: Any) -> Any:
        """Compare the first batch between nodes, and return what the script gets."""
        whole = batch.whole if isinstance(batch, LocalBatch) else batch
        self.job.first.compare(self.loader, self.where, whole)
        return self.wrap(batch)

    def wrap(self, batch: Any) -> Any:
        """Return what the script gets for a batch of the loader."""
        return batch


class SharedBatches(WholeBatches):
    """Batches that the first rank of a node loads for all of its ranks."""

    def __init__(
        self, job: Loaders, loader: Any, where: str, inner: Any, shared: SharedPass
    ) -> None:
        super().__init__(job, loader, where, inner)
        self.shared = shared

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
