"""This rank's rows of every batch that a loader makes up, in the order of one process."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from autoddp.run import Run
from autoddp.view.cuts import even_sizes
from autoddp.view.generators import Generators

APART = 7919  # what the seeds of two neighbouring ranks differ by
TORCHS = (RandomSampler, SequentialSampler, WeightedRandomSampler)  # draw nothing between two batches


class RowSampler(DistributedSampler[Any]):
    """Cuts the index batches of the script's own sampler.

    All ranks hold the same random state, so that sampler yields the order of one process on every
    rank. Nothing is repeated or dropped: sizes differ by one at most, and a batch with fewer rows
    than ranks goes to all of them.
    """

    def __init__(self, batches: Any, ranks: int, rank: int, before_fetch: Callable[[], None]) -> None:
        nothing: Any = ()  # the data set may have no length; what is cut is the batches
        super().__init__(nothing, num_replicas=ranks, rank=rank, shuffle=False)
        self.batches, self.before_fetch = batches, before_fetch
        self.sizes: deque[tuple[int, ...] | None] = deque()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        self.set_epoch(self.epoch + 1)
        self.sizes = deque()  # those of this pass; with workers the sampler runs ahead
        return self._pass(self.sizes)

    def _pass(self, noted: deque[tuple[int, ...] | None]) -> Iterator[Any]:
        for batch in self.batches:
            indices = list(batch)
            sizes = even_sizes(len(indices), self.num_replicas)
            noted.append(sizes if min(sizes) else None)
            self.before_fetch()  # the sampler has drawn what it draws
            start = sum(sizes[: self.rank])
            yield indices[start : start + sizes[self.rank]] if min(sizes) else indices


class Fetching:
    """Iterators of which this rank fetches its rows.

    What a data set draws moves no generator that the script sees: these stay equal on all ranks.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.starting: RowSampler | None = None  # of the iterator that is being made
        self._own: Generators | None = None  # this rank's stream, for data sets that draw
        self._outside: Generators | None = None  # where the generators are to be after a fetch
        self._drawing = False

    def start(self, loader: Any, make: Callable[[], Any], draws: bool, still: bool = False) -> Any:
        """What `make()` returns, an iterator over this rank's rows.

        Args:
            loader: The DataLoader.
            make: Its own `__iter__`.
            draws: Whether its data set draws random numbers: each rank then draws its own.
            still: Whether it is certain that none are drawn.
        """
        world = self.run.world
        here = loader.num_workers == 0 and not still  # else the data set draws in its workers

        def before_fetch() -> None:
            if here:
                self._before_fetch(draws)

        sampler = RowSampler(loader.batch_sampler, world.world_size, world.rank, before_fetch)
        self.starting = sampler
        try:
            with self._fewer_workers(loader), self._own_seeds(loader, draws):
                return make()
        finally:
            self.starting = None

    def index_sampler(self, plain: property) -> property:
        """Ours while an iterator is made, else the script's: `len(loader)` is that of one process."""

        def index_sampler(loader: Any) -> Any:
            return self.starting if self.starting is not None else plain.fget(loader)  # type: ignore[misc]

        return property(index_sampler)

    def fetch(self, inner: Any) -> Any:
        """The next batch; modules in a data set are plain."""
        self._outside = None
        try:
            with self.run.view.set_aside():
                return next(inner)
        finally:
            if self._drawing:
                self._own = Generators()
            if self._outside is not None:
                self._outside.put_back()

    def _before_fetch(self, draws: bool) -> None:
        self._outside, self._drawing = Generators(), draws
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
        """The node's workers are shared out, unless a sampler of the script's draws between batches."""
        batches, before = loader.batch_sampler, loader.num_workers
        known = type(batches) is BatchSampler and type(batches.sampler) in TORCHS
        if known and before:
            loader.num_workers = -(-before // self.run.world.local_world_size)
        try:
            yield
        finally:
            loader.num_workers = before

    @contextmanager
    def _own_seeds(self, loader: Any, draws: bool) -> Iterator[None]:
        """Seeds of workers differ by rank; the script's generator moves on as in one process."""
        if not draws:
            yield
            return
        before = loader.generator
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=before).item())
        loader.generator = torch.Generator().manual_seed((seed + APART * self.run.world.rank) % 2**63)
        try:
            yield
        finally:
            loader.generator = before
