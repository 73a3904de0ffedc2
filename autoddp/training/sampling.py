"""Samplers and fetches of this rank's rows of every batch, in the order of one process."""

from __future__ import annotations

import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from autoddp.comm.context import Code
from autoddp.view.generators import Generators
from autoddp.view.shard_sizes import even_sizes

if TYPE_CHECKING:
    from autoddp.effects.run import Run

APART = 7919  # what the seeds of two neighbouring ranks differ by
# Samplers of torch that draw nothing between two batches.
TORCHS = (RandomSampler, SequentialSampler, WeightedRandomSampler)


class RowSampler(DistributedSampler[Any]):
    """A sampler that cuts this rank's part out of the index batches of the script's sampler.

    All ranks hold the same random state, so the script's sampler yields the order of one process
    on every rank. Nothing is repeated or dropped: sizes differ by one at most, and a batch with
    fewer rows than ranks goes to all of them.
    """

    def __init__(
        self, batches: Any, ranks: int, rank: int, before_fetch: Callable[[], None]
    ) -> None:
        nothing: Any = ()  # the data set may have no length; what is cut is the batches
        super().__init__(nothing, num_replicas=ranks, rank=rank, shuffle=False)
        self.batches, self.before_fetch = batches, before_fetch
        self.sizes: deque[tuple[int, ...] | None] = deque()
        self.first: list[Any] = []  # all indices of the first batch of this pass

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        self.set_epoch(self.epoch + 1)
        self.sizes = deque()  # those of this pass; with workers the sampler runs ahead
        return self._pass(self.sizes)

    def _pass(self, noted: deque[tuple[int, ...] | None]) -> Iterator[Any]:
        for number, batch in enumerate(self.batches):
            indices = list(batch)
            self.first = self.first if number else indices
            sizes = even_sizes(len(indices), self.num_replicas)
            parted = bool(sizes[-1])  # the last rank has the fewest
            noted.append(sizes if parted else None)
            self.before_fetch()  # the sampler has drawn what it draws
            start = sum(sizes[: self.rank])
            yield indices[start : start + sizes[self.rank]] if parted else indices


@dataclass
class Drawn:
    """A batch whose samples drew random numbers where none were expected."""

    batch: Any


class Noticing:
    """A collate function for worker processes that says so when a generator has moved."""

    def __init__(self, loader: Any) -> None:
        self.collate, self.begin = loader.collate_fn, loader.worker_init_fn
        self.before: Generators | None = None

    def __call__(self, samples: Any) -> Any:
        """Collate the batch; the first time that a generator has moved, wrap it in `Drawn`."""
        batch = self.collate(samples)
        if self.before is None or self.before.same(Generators()):
            return batch
        self.before = None
        return Drawn(batch)


class Beginning:
    """A `worker_init_fn` that calls the script's own, then notes where the generators begin."""

    def __init__(self, noticing: Noticing) -> None:
        self.noticing = noticing

    def __call__(self, number: int) -> None:
        if self.noticing.begin is not None:
            self.noticing.begin(number)
        self.noticing.before = Generators()


@contextmanager
def _noticed(loader: Any) -> Iterator[None]:
    noticing = Noticing(loader)
    loader.collate_fn, loader.worker_init_fn = noticing, Beginning(noticing)
    try:
        yield
    finally:
        loader.collate_fn, loader.worker_init_fn = noticing.collate, noticing.begin


class Fetching:
    """A maker of loader iterators that fetch this rank's rows alone.

    Draws of a data set move no generator that the script sees: these stay equal on all ranks.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.starting: Any = None  # index sampler of the iterator that is being made
        self._own: Generators | None = None  # this rank's stream, for data sets that draw
        self._outside: Generators | None = None  # where the generators are to be after a fetch
        self._drawing = False
        self._drew: Callable[[], None] | None = None

    def start(
        self,
        loader: Any,
        make: Callable[[], Any],
        draws: bool,
        still: bool = False,
        drew: Callable[[], None] | None = None,
    ) -> Any:
        """Make the loader's iterator, over this rank's rows of every batch.

        Args:
            loader: The DataLoader.
            make: Its own `__iter__`.
            draws: Whether its data set draws random numbers: each rank then draws its own.
            still: Whether it is certain that none are drawn.
            drew: Called where numbers are drawn in this process, if none are expected; with workers
                their batch comes as `Drawn`.
        """
        world, context = self.run.world, self.run.group.context
        here = loader.num_workers == 0 and not still  # else the data set draws in its workers

        def before_fetch() -> None:
            if here and context.on_script_thread():
                self._before_fetch(draws, drew)

        sampler = RowSampler(loader.batch_sampler, world.world_size, world.rank, before_fetch)
        self.starting = sampler
        try:
            with self._fewer_workers(loader), self._own_seeds(loader, draws):
                if drew is None or here:
                    return make()
                with _noticed(loader):
                    return make()
        finally:
            self.starting = None

    def index_sampler(self, plain: property) -> property:
        """Return a property: our sampler while an iterator is made, else the script's.

        So `len(loader)` is that of one process.
        """
        context = self.run.group.context

        def index_sampler(loader: Any) -> Any:
            starts = self.starting is not None and context.on_script_thread()
            return self.starting if starts else plain.fget(loader)  # type: ignore[misc]

        return property(index_sampler)

    def fetch(self, inner: Any) -> Any:
        """Fetch the next batch, with modules in the data set plain, and put the generators back."""
        self._outside = None
        if not self.run.group.context.on_script_thread():
            # what the script does meanwhile must not be plain, nor its draws undone
            return next(inner)
        try:
            with self.run.view.context.within(Code.PLAIN):
                return next(inner)
        finally:
            if self._drawing:
                self._own = Generators()
            if self._outside is not None:
                if self._drew is not None and not self._outside.same(Generators()):
                    self._drew()
                self._outside.put_back()

    def _before_fetch(self, draws: bool, drew: Callable[[], None] | None) -> None:
        self._outside, self._drawing, self._drew = Generators(), draws, drew
        if draws and self._own is None:
            seed = torch.initial_seed() + APART * (self.run.world.rank + 1)
            random.seed(seed)
            torch.default_generator.manual_seed(seed % 2**63)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(seed % 2**32)
        elif draws and self._own is not None:
            self._own.put_back()

    @contextmanager
    def _fewer_workers(self, loader: Any) -> Iterator[None]:
        """Divide the workers over the node's ranks, unless the sampler may draw between batches."""
        batches, before = loader.batch_sampler, loader.num_workers
        known = type(batches) is BatchSampler and type(batches.sampler) in TORCHS
        if known and before:
            ranks, cores = self.run.world.local_world_size, len(os.sched_getaffinity(0))
            loader.num_workers = min(before, max(-(-before // ranks), cores // ranks))
        try:
            yield
        finally:
            loader.num_workers = before

    @contextmanager
    def _own_seeds(self, loader: Any, draws: bool) -> Iterator[None]:
        """Seed workers apart on each rank; the script's generator moves on as in one process."""
        if not draws:
            yield
            return
        before = loader.generator
        # on the device that torch takes
        drawn = torch.empty((), dtype=torch.int64).random_(generator=before)
        seed = (int(drawn.item()) + APART * self.run.world.rank) % 2**63
        loader.generator = torch.Generator(drawn.device).manual_seed(seed)
        try:
            yield
        finally:
            loader.generator = before
