"""Plans for loaders: each rank fetches its rows, one loads for its node, or every one loads all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, StackDataset, Subset, TensorDataset
from torch.utils.data.dataloader import default_collate

from autoddp.comm.context import Code
from autoddp.training.sharing.reached import Reached
from autoddp.training.sharing.snapshot import Snapshot
from autoddp.training.sharing.writes import may_write
from autoddp.view.generators import Generators
from autoddp.view.rules.losses import IGNORED
from autoddp.view.state import View

Kinds = tuple[torch.dtype, ...] | None
ROWS, SHARED, EACH = "rows", "shared", "each"
# what a fetch may show that the first sample did not
DRAWS = "its data set draws random numbers, which it did not for its first sample"
CHANGES = "its data set keeps state, which its first sample did not show"


@dataclass(frozen=True)
class Plan:
    """The way a loader is run, and why not by rows; whether its data set draws numbers.

    Of tensors in memory (`known`) it is certain that none is drawn, and if a target is ignored.
    `runs` tells whether a fetch runs code of the script's, `kinds` the data types of a batch, where
    rows decide them.
    """

    way: str
    reason: str = ""
    draws: bool = False
    known: bool = False
    runs: bool = False
    kinds: Kinds = None

    def said(self) -> str:
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
    return (
        ""
        if getattr(loader, "in_order", True)
        else "its batches come in any order (in_order=False)"
    )


def _fetches_batches(dataset: Any) -> bool:
    """Return whether a data set has `__getitems__`; torch's own hand it on to what they hold."""
    if type(dataset) is Subset:
        return _fetches_batches(dataset.dataset)
    if type(dataset) is StackDataset:
        held = dataset.datasets
        return any(map(_fetches_batches, held.values() if isinstance(held, dict) else held))
    return callable(getattr(dataset, "__getitems__", None))


def in_memory(dataset: Any) -> bool:
    """Return whether torch's own classes hold tensors: they draw nothing and keep no state."""
    if type(dataset) is Subset:
        return in_memory(dataset.dataset)
    return type(dataset) is TensorDataset and all(type(t) is Tensor for t in dataset.tensors)


def none_ignored(dataset: Any) -> bool:
    """Return whether no target in memory is one that losses ignore."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return not any(bool((t == IGNORED).any()) for t in dataset.tensors if t.dtype is torch.int64)


def own_iterator(loader: Any) -> bool:
    """Return whether a subclass of DataLoader makes its iterators itself."""
    return any(
        "_get_iterator" in vars(kind) for kind in type(loader).__mro__ if kind is not DataLoader
    )


def numbers_only(sample: Any) -> bool:
    """Return whether collating a part of the samples gives that part of the batch, all tensors.

    The sample is looked through as the batch will be: a container that pytree does not know (a
    dict's subclass) is a leaf, and no number.
    """
    return all(isinstance(x, (Tensor, int, float)) or _of_numpy(x) for x in tree_leaves(sample))


def _of_numpy(x: Any) -> bool:
    return type(x).__module__ == "numpy" and not isinstance(x, (str, bytes))


class Tried(NamedTuple):
    """The outcome of one sample, and of a reading of the code that fetches it.

    Attributes:
        reason: Why not by rows; empty if nothing speaks against it.
        draws: Whether the data set draws random numbers.
        state: Whether it keeps state.
        runs: Whether a fetch runs code of the script's.
        kinds: The data types of a batch, where rows decide them; else None.
    """

    reason: str
    draws: bool = False
    state: bool = False
    runs: bool = False
    kinds: Kinds = None


def tried(view: View, loader: Any) -> Tried:
    """Try a sample, and read the code that fetches it."""
    reached = Reached(loader.dataset)
    if reached.generator:
        return Tried(f"its data set has a generator of its own: {reached.generator}", state=True)
    indices = getattr(loader.sampler, "indices", None)
    before, state = Generators(), Snapshot(dataset=loader.dataset)
    if state.refused:
        return Tried(state.refused, state=True)
    called = reached.called()
    if state.large and (
        written := may_write(called, loader.dataset, acts=False, types=state.large_types)
    ):
        why = f"{state.large} is too large to be put back, and {written}, may write there"
        return Tried(why, state=True)
    try:
        with view.context.within(Code.PLAIN), view.trial():
            sample = loader.dataset[indices[0] if indices is not None and len(indices) else 0]
    except Exception as error:
        return Tried(f"a sample could not be fetched by its number ({type(error).__name__})")
    finally:
        draws = not before.same(Generators())
        before.put_back()
        changed = state.put_back()
    if changed:
        return Tried(f"its data set keeps state: {changed}", draws, state=True)
    if not numbers_only(sample):
        return Tried("a sample holds more than numbers", draws)
    written = may_write(called, loader.dataset)
    reason = f"its data set may keep state, print or write: {written}" if written else ""
    return Tried(reason, draws, runs=bool(called), kinds=_kinds(sample))


def _kinds(sample: Any) -> Kinds:
    """Return a batch's data types if the sample holds numbers of Python's: each has its own."""
    if not any(isinstance(x, (int, float)) for x in tree_leaves(sample)):
        return None
    return tuple(x.dtype for x in tree_leaves(default_collate([sample])))
