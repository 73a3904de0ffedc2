"""Plans for loaders: each rank fetches its rows, one loads for its node, or every one loads all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, StackDataset, Subset, TensorDataset
from torch.utils.data.dataloader import default_collate

from autoddp.training.loading.watch import Access

ROWS, SHARED, EACH = "rows", "shared", "each"
THREAD = "it is iterated in a thread of the script's"


@dataclass(eq=False)
class Plan:
    """The way in which a data set is loaded, and why not by rows.

    Attributes:
        settled: Whether a first batch has shown that nothing speaks against rows.
        known: Whether it is certain that nothing is drawn: tensors in memory.
        late: What a later fetch drew from on this rank, in words.
        own: The generators that are objects.
    """

    where: str
    way: str = ROWS
    reason: str = ""
    confirmed: bool = False
    never_draws: bool = False
    late_draws: str = ""
    generators: list[Access] = field(default_factory=list)

    def describe(self) -> str:
        """Put the plan into words."""
        how = {
            ROWS: "each rank fetches its rows",
            SHARED: "loaded once on each node, for all of its ranks",
            EACH: "every rank loads all",
        }[self.way]
        return f"{how}: {self.reason}" if self.reason else how


def unlike_rows(loader: Any) -> str:
    """Return why a loader cannot be fetched by rows, or nothing."""
    if isinstance(loader.dataset, IterableDataset):
        return "its data set is an iterable"
    if not loader._auto_collation:
        return "it makes no batches (batch_size=None)"
    if loader.collate_fn is not default_collate:
        return "it has a collate function of its own"
    if _fetches_batches(loader.dataset):
        return "its data set fetches a batch by a function of its own"
    ordered = getattr(loader, "in_order", True)
    return "" if ordered else "its batches come in any order (in_order=False)"


def _fetches_batches(dataset: Any) -> bool:
    """Return whether a data set has `__getitems__`; torch's own hand it on to what they hold."""
    if type(dataset) is Subset:
        return _fetches_batches(dataset.dataset)
    if type(dataset) is StackDataset:
        held = dataset.datasets
        return any(map(_fetches_batches, held.values() if isinstance(held, dict) else held))
    return callable(getattr(dataset, "__getitems__", None))


def in_memory(dataset: Any) -> bool:
    """Return whether a data set is torch's own holder of tensors, or a part of one."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset and all(type(t) is Tensor for t in dataset.tensors)


def own_iterator(loader: Any) -> bool:
    """Return whether a subclass of DataLoader makes its iterators itself."""
    return any(
        "_get_iterator" in vars(kind) for kind in type(loader).__mro__ if kind is not DataLoader
    )


def owner(loader: Any) -> Any:
    """Return the holder of a plan: the data set, which other loaders may read, or the loader."""
    kind: Any = type(loader.dataset)
    plain = kind.__hash__ is object.__hash__ and kind.__weakrefoffset__ > 0
    return loader.dataset if plain else loader
