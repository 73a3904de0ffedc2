"""The iterator that replaces a DataLoader's, and batches that arrive whole on a rank."""

from __future__ import annotations

from functools import partial
from time import perf_counter  # the script's is patched
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from autoddp.training.iterator import LoaderIterator
from autoddp.training.loading.shared_pass import LocalBatch

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
        # torch's own fetch, which is patched for rows: all ranks fetch the same, in step, so that
        # rank 0 prints and writes for all
        fetcher = getattr(inner, "_dataset_fetcher", None)
        own = getattr(getattr(type(fetcher), "fetch", None), "__wrapped__", None)
        if own is not None and not loader.num_workers:
            inner._dataset_fetcher = SimpleNamespace(fetch=partial(own, fetcher))

    def next(self) -> Any:
        """Return the next batch."""
        return self.checked(self.load())

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
