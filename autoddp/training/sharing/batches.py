"""The iterator that a script gets of a loader, and where its batches come from."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter  # a script's is patched
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data._utils.pin_memory import pin_memory

from autoddp.comm.context import Code
from autoddp.training.iterator import LoaderIterator
from autoddp.training.sharing.course import rows_of
from autoddp.training.sharing.parcel import ALIGNED
from autoddp.training.sharing.share import Pass
from autoddp.view import ShardedTensor
from autoddp.view.rules.losses import counted
from autoddp.view.state import View

WORTH = 1 << 16  # bytes of rows below which they are copied, so that the batch can go
Compare = Callable[[Any], None]  # compares a loader's first batch over the nodes; once


class Source(Protocol):
    """A way in which batches come.

    Attributes:
        inner: The loader's own iterator, or what stands for it.
        instead: Where the batches after this one come from, if not from here.
    """

    inner: Any
    instead: Source | None

    def next(self) -> Any:
        """Return the next batch."""


class Batches(LoaderIterator):
    """The iterator that the script gets; its source may change at the first batch."""

    def __init__(self, source: Source, where: str, waited: dict[str, float]) -> None:
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
            self.source = self.source.instead or self.source
            self.waited[self.where] += perf_counter() - began


class Whole:
    """Batches that every rank loads; modules in the fetch are plain."""

    instead: Source | None = None

    def __init__(self, view: View, inner: Any, compare: Compare) -> None:
        self.view, self.inner, self.compare = view, inner, compare

    def next(self) -> Any:
        """Return the next batch."""
        if not self.view.context.on_script_thread():
            # else modules of the script's own thread would be plain meanwhile
            return next(self.inner)
        with self.view.context.within(Code.PLAIN):
            batch = next(self.inner)
        self.compare(batch)
        return self.made(batch)

    def made(self, batch: Any) -> Any:
        """Return what the script gets of a batch."""
        return batch


class Handed(Whole):
    """Batches that the first rank of the node loads."""

    def __init__(self, view: View, inner: Pass, compare: Compare) -> None:
        super().__init__(view, inner, compare)
        self.batched, self.pins = inner.course.batched, inner.pins

    def next(self) -> Any:
        """Return the next batch, of tensors as this rank's rows."""
        batch = super().next()
        return batch if self.view.context.on_script_thread() else self.made(batch)

    def made(self, batch: Any) -> Any:
        """Return what the script gets of a batch."""
        leaves, spec = tree_flatten(batch)
        total = rows_of(leaves) if self.batched else 0
        if total < self.view.group.size:
            return pin_memory(batch, self.pins) if self.pins else batch
        cuts = self.view.even_sizes(total)
        cut = [counted(ShardedTensor(self._own(cuts.take(x, 0)), cuts), x) for x in leaves]
        return tree_unflatten(cut, spec)

    def _own(self, rows: Tensor) -> Tensor:
        if self.pins:
            return torch.empty_like(rows, pin_memory=True).copy_(rows)
        stays = rows.nbytes >= WORTH and rows.data_ptr() % ALIGNED == 0
        return rows if stays else rows.clone()
