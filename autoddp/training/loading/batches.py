"""The iterator that replaces a DataLoader's, and batches that arrive whole on a rank."""

from __future__ import annotations

from time import perf_counter  # the script's is patched
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data._utils.pin_memory import pin_memory

from autoddp.comm.context import Code
from autoddp.training.iterator import LoaderIterator
from autoddp.training.loading.shared_pass import LocalBatch
from autoddp.view import ShardedTensor

if TYPE_CHECKING:
    from autoddp.training.loading.loaders import Loaders

ALIGNED = 64  # bytes, as torch aligns memory
MIN_KEPT = 1 << 16  # bytes of rows; fewer are copied, so that the whole batch can be freed


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
        context = self.job.view.context
        if not context.on_script_thread():
            # `within` would affect modules on the script's thread
            return self.wrap(next(self.inner))
        with context.within(Code.PLAIN):
            batch = next(self.inner)
        return self.checked(batch)

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

    def wrap(self, batch: Any) -> Any:
        """Return what the script gets: a batch of tensors is sharded."""
        pin_to = self.inner.pin_to
        if not isinstance(batch, LocalBatch):
            return pin_memory(batch, pin_to) if pin_to else batch
        sizes = self.job.view.shard_sizes(batch.per_rank)
        return tree_map(lambda x: ShardedTensor(_own(x, pin_to), sizes), batch.rows)


def _own(rows: Tensor, pin_to: str) -> Tensor:
    """Return rows in memory of their own if they are few, to be pinned, or not aligned."""
    if pin_to:
        return torch.empty_like(rows, pin_memory=True).copy_(rows)
    stays = rows.nbytes >= MIN_KEPT and rows.data_ptr() % ALIGNED == 0
    return rows if stays else rows.clone()
