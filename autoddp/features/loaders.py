"""Each rank fetches its rows of every batch, where that gives the same batch."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Subset,
    TensorDataset,
)
from torch.utils.data.dataloader import default_collate

from autoddp.errors import Disagreement
from autoddp.iterator import LoaderIterator
from autoddp.patching import Feature, patch
from autoddp.report import users_line
from autoddp.run import Run
from autoddp.sampling import Fetching
from autoddp.view import Rows
from autoddp.view.generators import Generators
from autoddp.view.rules.losses import IGNORED, counted
from autoddp.view.snapshot import Snapshot


@dataclass(frozen=True)
class Plan:
    """How a loader is run: by rows, or whole for a reason; whether its data set draws numbers.

    Of tensors in memory (`known`) it is certain that none is drawn, and whether a target is ignored.
    """

    reason: str = ""
    draws: bool = False
    known: bool = False


class Loaders(Feature):
    """Map-style data sets with the default collate function are fetched by rows.

    Any other loader is run whole by every rank; its rows are cut where a module is called.
    """

    name = "loaders"
    without = "every rank fetches whole batches"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.view, self.run, self.loading = run.view, run, run.options.loading
        self.plans: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()
        self.fetching = Fetching(run)

    @patch("torch.utils.data:DataLoader.__iter__", why="each rank fetches its rows of every batch")
    def share_batches(self, wrapped: Any, loader: Any, args: Any, kwargs: Any) -> Any:
        """Batches come out as rows, in training and in evaluation."""
        if not self.view.here() or torch.utils.data.get_worker_info() is not None:
            return wrapped()
        plan = self.plans.get(loader)
        if plan is None:
            plan = self.plans[loader] = self._plan(loader)
            what = plan.reason or "each rank fetches its rows"
            self.run.report.add("loaders", f"DataLoader at {users_line()}", what)
        if plan.reason:
            return Whole(self, wrapped())
        inner = self.fetching.start(loader, wrapped, plan.draws, still=plan.known)
        return Shared(self, inner, plan.known and _none_ignored(loader.dataset))

    @patch(
        "torch.utils.data:DataLoader._index_sampler",
        why="the indices of this rank's rows of every batch, in the script's own order",
        hot=True,
    )
    def rows_of_indices(self, plain: property) -> property:
        """While an iterator is made."""
        return self.fetching.index_sampler(plain)

    def _plan(self, loader: Any) -> Plan:
        reason = _unshareable(loader)
        if reason or _in_memory(loader.dataset):
            return Plan(reason, known=not reason)
        reason, draws = self._probe(loader)
        group = self.view.group
        if group.spread(
            torch.tensor([float(bool(reason)), float(draws)])
        ).any():  # ranks found different things: the data set itself differs
            reason = reason or "ranks see different data"
        if draws and not reason:
            if self.loading == "whole":
                return Plan("its data set draws random numbers: --loading whole", draws)
            self.run.report.doubt(
                "loaders",
                f"DataLoader at {users_line()}",
                "its data set draws random numbers: each rank draws its own, statistically the same "
                "(--loading whole gives the numbers of one process)",
            )
        return Plan(reason, draws)

    def _probe(self, loader: Any) -> tuple[str, bool]:
        """One sample more than one process fetches; all that it changed is put back."""
        indices = getattr(loader.sampler, "indices", None)
        before, state = Generators(), Snapshot(dataset=loader.dataset)
        if state.refused:
            return state.refused, False
        try:
            with self.view.set_aside(), self.view.trial():
                sample = loader.dataset[indices[0] if indices is not None and len(indices) else 0]
        except Exception as error:
            return f"a sample could not be fetched by its number ({type(error).__name__})", False
        finally:
            draws = not before.same(Generators())
            before.put_back()
            changed = state.put_back()
        if changed:
            return f"its data set keeps state: {changed}", draws
        return ("" if _numbers_only(sample) else "a sample holds more than numbers"), draws


class Whole(LoaderIterator):
    """An iterator of which every rank fetches every batch; modules in the fetch are plain."""

    def __init__(self, feature: Loaders, inner: Any) -> None:
        super().__init__(inner)
        self.feature = feature

    def __next__(self) -> Any:
        with self.feature.view.set_aside():
            return next(self.inner)


class Shared(Whole):
    """An iterator of which this rank fetches its rows of every batch."""

    def __init__(self, feature: Loaders, inner: Any, none_ignored: bool) -> None:
        super().__init__(feature, inner)
        self.none_ignored = none_ignored
        self.sizes: deque[tuple[int, ...] | None] = inner._index_sampler.sizes

    def __next__(self) -> Any:
        batch = self.feature.fetching.fetch(self.inner)
        sizes = self.sizes.popleft()
        if sizes is None:
            return batch
        cuts = self.feature.view.cuts(sizes)

        def rows(x: Any) -> Any:
            if not isinstance(x, Tensor):
                raise Disagreement(_unlike(x))
            return counted(Rows(x, cuts), self.none_ignored)

        if type(batch) is list and all(isinstance(x, Tensor) for x in batch):
            return [rows(x) for x in batch]  # three times quicker, and most batches are so
        return tree_map(rows, batch)


def _unshareable(loader: Any) -> str:
    """Why a loader is run whole by every rank, or nothing."""
    if isinstance(loader.dataset, IterableDataset):
        return "its data set is an iterable: every rank reads all of it"
    if not loader._auto_collation:
        return "it makes no batches (batch_size=None)"
    if loader.collate_fn is not default_collate:
        return "it has a collate function of its own"
    if not getattr(loader, "in_order", True):
        return "its batches come in any order (in_order=False)"
    return "it is a subclass with an iterator of its own" if _own_iterator(loader) else ""


def _in_memory(dataset: Any) -> bool:
    """Tensors, or a part of them, by torch's own classes: known to draw nothing and keep no state."""
    if type(dataset) is Subset:
        return _in_memory(dataset.dataset)
    return type(dataset) is TensorDataset and all(type(t) is Tensor for t in dataset.tensors)


def _none_ignored(dataset: Any) -> bool:
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return not any(bool((t == IGNORED).any()) for t in dataset.tensors if t.dtype is torch.int64)


def _own_iterator(loader: Any) -> bool:
    return type(loader)._get_iterator is not DataLoader._get_iterator


def _numbers_only(sample: Any) -> bool:
    """Whether collating a part of the samples gives that part of the batch, tensors throughout.

    Looked through as the batch will be: a container that pytree does not know (a dict's subclass) is
    a leaf, and no number.
    """
    return all(isinstance(x, (Tensor, int, float)) or _of_numpy(x) for x in tree_leaves(sample))


def _of_numpy(x: Any) -> bool:
    return type(x).__module__ == "numpy" and not isinstance(x, (str, bytes))


def _unlike(x: Any) -> str:
    return (
        f"a batch of the DataLoader holds a {type(x).__name__} where its first sample held numbers; each "
        "rank fetched its rows alone, and cannot give the script all of it: samples must be alike, or "
        "--disable loaders has every rank fetch all"
    )
