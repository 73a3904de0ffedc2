"""The iterators that a script gets of its loaders, and how long they keep a rank waiting."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter  # a script's is patched
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data._utils.pin_memory import pin_memory

from autoddp.comm.context import Code
from autoddp.errors import Disagreement
from autoddp.training.first_batch import FirstBatch
from autoddp.training.iterator import LoaderIterator
from autoddp.training.sampling import Drawn, Fetching
from autoddp.training.sharing.memory import WORTH, Lent
from autoddp.training.sharing.packing import ALIGNED
from autoddp.training.sharing.plan import CHANGES, DRAWS, Kinds
from autoddp.training.sharing.share import Pass
from autoddp.training.sharing.stamp import DatasetWatch
from autoddp.view import ShardedTensor
from autoddp.view.rules.losses import counted
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.state import View


@dataclass
class Waiting:
    """The seconds that this rank waited for a loader's batches, of how many of its passes."""

    seconds: float = 0.0
    total: float = 0.0
    workers: int = 0
    by_rows: bool = False  # whether each rank fetches its rows alone

    @property
    def share(self) -> float:
        """Return the share of the time."""
        return self.seconds / self.total if self.total else 0.0


class Whole(LoaderIterator):
    """An iterator of which every rank loads every batch; modules in the fetch are plain."""

    def __init__(
        self, view: View, inner: Any, waiting: Waiting, first: FirstBatch | None = None
    ) -> None:
        super().__init__(inner)
        self.view, self.waiting, self.first = view, waiting, first
        self._since = perf_counter()

    def __next__(self) -> Any:
        began = perf_counter()
        try:
            batch = self._batch()
            self.first = None
            return batch
        finally:
            now = perf_counter()
            self.waiting.seconds += now - began
            self.waiting.total += now - self._since
            self._since = now

    def _batch(self) -> Any:
        if not self.view.context.on_script_thread():
            # else modules of the script's own thread would be plain meanwhile
            return next(self.inner)
        with self.view.context.within(Code.PLAIN):
            batch = next(self.inner)
        if self.first is not None:
            self.first.compare(_opened(x) for x in tree_leaves(batch))
        return batch


class Handed(Whole):
    """An iterator whose batches the first rank of the node loads."""

    def __init__(
        self, view: View, inner: Pass, waiting: Waiting, first: FirstBatch | None = None
    ) -> None:
        super().__init__(view, inner, waiting, first)
        self.batched, self.pins, self.took, self.memory = (
            inner.batched,
            inner.pins,
            inner.took,
            inner.memory,
        )

    def _batch(self) -> Any:
        batch = super()._batch()
        if not self.batched:
            return pin_memory(batch, self.pins) if self.pins else batch
        leaves, spec = tree_flatten(batch)
        total = _rows_of(leaves)
        if total < self.view.group.size:
            self.memory.cut = None
            whole = tree_unflatten([_copied(x) for x in leaves], spec)
            made = pin_memory(whole, self.pins) if self.pins else whole
        else:
            self.memory.cut = self.view.even_sizes  # the next one will be alike
            cuts = self.view.even_sizes(total)
            made = tree_unflatten([self._rows(x, cuts) for x in leaves], spec)
        self.took()
        return made

    def _rows(self, x: Tensor | Lent, cuts: ShardSizes) -> ShardedTensor:
        if isinstance(x, Lent):
            return counted(
                ShardedTensor(self._pinned(x.rows(cuts, self.memory.again)), cuts), x.laid
            )
        return counted(ShardedTensor(self._mine(x, cuts), cuts), x)

    def _mine(self, x: Tensor, cuts: ShardSizes) -> Tensor:
        """Return this rank's rows, where no other rank looks or writes.

        Tensors that a worker collated are shared with this process as with one process, and not
        used again, so that each rank's rows can stay where they are; but all ranks count what is
        ignored among all targets.
        """
        rows = cuts.take(x, 0)
        if self.pins:
            return self._pinned(rows)
        large = x.nbytes >= WORTH and x.dtype is not torch.int64
        return (
            rows if large and rows.data_ptr() % ALIGNED == 0 and x.is_contiguous() else rows.clone()
        )

    def _pinned(self, rows: Tensor) -> Tensor:
        return torch.empty_like(rows, pin_memory=True).copy_(rows) if self.pins else rows


@dataclass(frozen=True)
class Source:
    """A loader that is fetched by rows.

    Attributes:
        notice: Called with what a fetch shows that the first sample did not.
        none_ignored: Whether no target is one that losses ignore.
        known: Whether it is certain that it draws nothing and keeps no state.
        look: What tells whether a fetch changes the data set, if it may.
        kinds: The data types that a batch has if all its samples are like the first; None if they
            are no matter of its rows.
    """

    fetching: Fetching
    notice: Callable[[str], None]
    none_ignored: bool
    known: bool
    look: DatasetWatch | None
    kinds: Kinds = None


PLAIN = {Tensor}


class Shared(Whole):
    """An iterator of which this rank fetches its rows of every batch."""

    def __init__(
        self,
        view: View,
        inner: Any,
        waiting: Waiting,
        source: Source,
        first: FirstBatch | None = None,
    ) -> None:
        super().__init__(view, inner, waiting, first)
        self.source = source
        self.sizes: deque[tuple[int, ...] | None] = inner._index_sampler.sizes
        self.failed: Exception | None = None

    def _batch(self) -> Any:
        batch = self._tried()
        if type(batch) is Drawn:
            batch = batch.batch
            self.source.notice(DRAWS)
        if self.first is not None:
            self.first.compare_rows(self.inner._index_sampler.first, self.source.known)
        sizes = self.sizes.popleft()
        if sizes is None:
            return batch
        cuts = self.view.shard_sizes(sizes)

        def rows(x: Any) -> Any:
            if not isinstance(x, Tensor):
                raise Disagreement(_unlike(x))
            return counted(ShardedTensor(x, cuts), none_ignored=self.source.none_ignored)

        if type(batch) is list and set(map(type, batch)) == PLAIN:
            self._compare([x.dtype for x in batch])
            return [rows(x) for x in batch]  # three times quicker, and most batches are so
        made = tree_map(rows, batch)
        self._compare([x.dtype for x in tree_leaves(batch)])
        return made

    def _compare(self, kinds: list[torch.dtype]) -> None:
        if self.source.kinds is not None and self.source.kinds != tuple(kinds):
            raise Disagreement(MIXED)

    def _tried(self) -> Any:
        """Fetch a batch; after an error that the script caught, other ranks have another one."""
        if self.failed is not None:
            error, self.failed, self.inner = self.failed, None, iter(())
            raise Disagreement(_alone(error)) from error
        try:
            return self._fetched()
        except StopIteration:
            raise
        except Exception as error:
            self.failed = error
            raise

    def _fetched(self) -> Any:
        look = self.source.look
        if look is None or look.refused:
            return self.source.fetching.fetch(self.inner)
        look.before()
        batch = self.source.fetching.fetch(self.inner)
        if look.after():
            self.source.notice(CHANGES)
        return batch


MIXED = (
    "a batch of the DataLoader holds Python numbers of another type than its first sample did, and "
    "the first row of a batch decides: each rank fetched its rows alone; --loading each has every "
    "rank fetch all"
)


def _alone(error: Exception) -> str:
    return (
        f"a sample raised {type(error).__name__} ({error}), and the script went on: each rank "
        "fetched its rows alone, so other ranks have that batch; --loading each has every rank "
        "fetch all"
    )


def _opened(x: Any) -> Any:
    return x.whole() if type(x) is Lent else x


def _copied(x: Any) -> Any:
    """Copy a leaf; for pytree, a user's own kind of dictionary is one, and may hold tensors."""
    if type(x) is Lent:
        return x.whole()
    return x.clone() if isinstance(x, Tensor) else copy.deepcopy(x)


def _rows_of(leaves: list[Any]) -> int:
    """Return how many rows all of these tensors have; 0 where that cannot be said."""
    plain = all(type(x) is Lent or _is_strided(x) for x in leaves)
    sizes = {x.shape[0] for x in leaves} if plain else set()
    return int(sizes.pop()) if len(sizes) == 1 else 0


def _is_strided(x: Any) -> bool:
    return type(x) is Tensor and bool(x.dim()) and x.layout is torch.strided


def _unlike(x: Any) -> str:
    return (
        f"a batch of the DataLoader holds a {type(x).__name__} where its first sample held "
        "numbers; each rank fetched its rows alone, and cannot give the script all of it: samples "
        "must be alike, or --disable loaders has every rank fetch all"
    )
