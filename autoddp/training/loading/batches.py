"""The iterator that a script gets of a loader, and batches that come whole to a rank."""

from __future__ import annotations

from time import perf_counter  # a script's is patched
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

ALIGNED = 64  # bytes, as torch's own memory is
WORTH = 1 << 16  # bytes of rows below which they are copied, so that the batch can go


class Batches(LoaderIterator):
    """The iterator that the script gets.

    Its source has the loader's own iterator as `inner`, and says at its first batch by `instead`
    if all others come from elsewhere.
    """

    def __init__(self, source: Any, where: str, waited: dict[str, float]) -> None:
        self.source, self.where, self.waited = source, where, waited

    @property
    def inner(self) -> Any:
        """Return the loader's own iterator, which answers whatever else is asked."""
        return self.source.inner

    def __next__(self) -> Any:
        began = perf_counter()
        try:
            return self.source.next()
        finally:
            self.source = self.source.successor or self.source
            self.waited[self.where] += perf_counter() - began


class WholeBatches:
    """Batches that every rank loads; modules in the fetch are plain."""

    successor = None

    def __init__(self, job: Loaders, loader: Any, where: str, inner: Any) -> None:
        self.job, self.loader, self.where, self.inner = job, loader, where, inner

    def next(self) -> Any:
        """Return the next batch."""
        context = self.job.view.context
        if not context.on_script_thread():
            # else modules of the script's own thread would be plain meanwhile
            return self.wrap(next(self.inner))
        with context.within(Code.PLAIN):
            batch = next(self.inner)
        return self.checked(batch)

    def checked(self, batch: Any) -> Any:
        """Compare the first batch of several nodes, and return the script's, given the loader's."""
        whole = batch.whole if isinstance(batch, LocalBatch) else batch
        self.job.first.compare(self.loader, self.where, whole)
        return self.wrap(batch)

    def wrap(self, batch: Any) -> Any:
        """Return the script's batch, given the loader's."""
        return batch


class SharedBatches(WholeBatches):
    """Batches that the first rank of the node loads."""

    def wrap(self, batch: Any) -> Any:
        """Return the script's batch, of tensors as this rank's rows, given the loader's."""
        pin_to = self.inner.pin_to
        if not isinstance(batch, LocalBatch):
            return pin_memory(batch, pin_to) if pin_to else batch
        sizes = self.job.view.shard_sizes(batch.per_rank)
        return tree_map(lambda x: ShardedTensor(_own(x, pin_to), sizes), batch.rows)


def _own(rows: Tensor, pin_to: str) -> Tensor:
    """Return rows of a batch that is this rank's own; where they are few, without the others."""
    if pin_to:
        return torch.empty_like(rows, pin_memory=True).copy_(rows)
    stays = rows.nbytes >= WORTH and rows.data_ptr() % ALIGNED == 0
    return rows if stays else rows.clone()
