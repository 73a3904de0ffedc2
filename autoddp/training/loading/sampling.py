"""Samplers and fetches of this rank's rows of every batch, in the order of one process."""

from __future__ import annotations

import itertools
import math
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from autoddp.comm import accelerator
from autoddp.comm.context import Code
from autoddp.training.loading.generators import Drawing, Generators, WatchingCollate
from autoddp.training.loading.in_memory import fetcher, in_process
from autoddp.training.loading.live import LiveGenerators
from autoddp.view.shard_sizes import even_sizes

if TYPE_CHECKING:
    from autoddp.effects.run import Run

APART = 7919  # difference between the seeds of neighbouring ranks


class RowSampler:
    """A sampler that takes this rank's part of each batch of indices of the script's sampler.

    All ranks have the same random state, so that the script's sampler yields the same order on all.
    No index is repeated or dropped: sizes differ by one at most, and a batch with fewer rows than
    ranks is whole on all of them.

    Attributes:
        sizes: Of each batch the rows of each rank, None if some have none, whether it is cut, and
            its indices.
        replicates: Returns whether the next batch is fetched whole, see `Placement`.
        in_memory: Whether samples are, so that `replicates` may say so.
        before_fetch: Called, if given, when the script's sampler has yielded a batch; gets whether
            it is cut.
        whole: The number of batches at the beginning that stay whole.
        seen: The batches of indices of a pass until the script has its first batch; else None.
    """

    def __init__(self, batches: Any, ranks: int, rank: int) -> None:
        self.batches, self.ranks, self.rank = batches, ranks, rank
        self.before_fetch: Callable[[bool], object] | None = None
        self.sizes: deque[tuple[tuple[int, ...] | None, bool, list[Any]]] = deque()
        self.replicates: Callable[[], bool] = bool
        self.in_memory = False
        self.whole: float = 0
        self.seen: list[Any] | None = None
        self.rest: Iterator[Any] = iter(())
        self._resumes = False

    def resume(self) -> None:
        """Begin the next pass with the batches of this one that were yielded; all are whole."""
        self.rest = itertools.chain(self.seen or (), self.rest)
        self.whole, self._resumes = math.inf, True

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        self.seen = [] if self.whole == 1 else None
        self.sizes = deque()  # of this pass; workers read ahead
        if not self._resumes:
            self.rest = iter(self.batches)
        return self._pass(self.sizes, self.rest)

    def _pass(self, queue: deque[Any], batches: Iterator[Any]) -> Iterator[Any]:
        self._resumes = False  # not before: torch makes an iterator that it does not read
        for number, batch in enumerate(batches):
            indices = list(batch)
            if self.seen is not None:
                self.seen.append(indices)
            sizes = even_sizes(len(indices), self.ranks)
            sharded = bool(sizes[-1])  # the last rank has the fewest rows
            cut = sharded and number >= self.whole and not self.replicates()
            queue.append((sizes if sharded else None, cut, indices))
            if self.before_fetch is not None:
                self.before_fetch(cut)
            if not cut:
                yield indices
                continue
            start = sum(sizes[: self.rank])
            yield indices[start : start + sizes[self.rank]]


def seeds_of(loader: Any) -> torch.Generator:
    """Return a copy of the generator from which the seeds of a loader's workers are drawn."""
    if loader.generator is not None:
        return loader.generator.clone_state()
    device = torch.empty(()).device  # the default one, as in torch
    copy = torch.Generator(device)
    copy.set_state(accelerator.state(device))
    return copy


@contextmanager
def changed(loader: Any, **values: Any) -> Iterator[None]:
    """Change attributes of a loader while an iterator is made inside."""
    before = {name: getattr(loader, name) for name in values}
    try:
        for name, value in values.items():
            object.__setattr__(loader, name, value)  # torch's own refuses some
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(loader, name, value)


class Fetching:
    """Iterators of loaders over this rank's rows.

    The script's generators stay equal on all ranks, whatever the data set draws.
    """

    def __init__(self, run: Run, live: LiveGenerators | None = None) -> None:
        self.run, self.live = run, live
        self.moved = ""  # what the last fetch in this process drew from
        self.outside: Generators | None = None  # the script's generators before a fetch
        self.cut = False  # whether this rank fetches its rows alone
        self._seeded = 0  # fetches with draws of this rank's own

    def start(
        self,
        loader: Any,
        make: Callable[[], Any],
        own_draws: bool,
        watched: list[Any] | None = None,
        whole: float = 0,
        here: bool = False,
    ) -> Any:
        """Make the loader's iterator over this rank's rows of every batch.

        Args:
            loader: The DataLoader.
            make: Its own `__iter__`.
            own_draws: Whether each rank draws numbers of its own.
            watched: Generators besides the global ones; if given, workers wrap a batch that drew
                in `DrawingBatch`. None without `own_draws` if the data set draws nothing.
            whole: The number of batches at the beginning that stay whole.
            here: Whether this process fetches what workers would send.
        """
        world = self.run.world
        sampler = RowSampler(loader.batch_sampler, world.world_size, world.rank)
        sampler.whole = whole
        context = self.run.group.context
        draws = own_draws or watched is not None
        if not draws and (here or not loader.num_workers):  # else ranks fetch rows, and gather them
            sampler.replicates, sampler.in_memory = self.replicates, True

        def before_fetch(cut: bool) -> None:
            if context.on_script_thread():
                self.outside, self.cut = Generators(watched or []), cut
                if own_draws and cut:
                    self._seed()

        if draws and not loader.num_workers:
            sampler.before_fetch = before_fetch
        # batches may come in any order, and ranks need the same
        changes = {} if here else self._workers(loader)
        changes |= {"batch_sampler": sampler, "in_order": True}
        if own_draws:
            changes["generator"] = self._own_seeds(loader)
        if self.live is not None and watched is not None and loader.num_workers:
            watching = WatchingCollate(loader, self.live)
            changes |= {"collate_fn": watching, "worker_init_fn": watching.begin}
        with changed(loader, **changes), in_process(loader) if here else nullcontext():
            inner = make()
        if not (draws or loader.num_workers):
            inner._dataset_fetcher = fetcher(loader, loader.dataset)
        return inner

    def fetch(self, inner: Any, draws: bool = False) -> Any:
        """Fetch the next batch, with modules in the data set not sharded.

        Afterwards restore the generators, unless all ranks have fetched the same.

        Args:
            inner: The loader's own iterator.
            draws: Whether samples that are fetched in this process may draw.
        """
        self.outside, self.moved = None, ""
        if not self.run.group.context.on_script_thread():
            # another thread's modules and draws would be affected
            return next(inner)
        try:
            noting = Drawing(lambda: self.outside) if draws else nullcontext()
            with self.run.view.context.within(Code.PLAIN), noting:
                return next(inner)
        finally:
            if self.outside is not None:
                self.moved = self.outside.moved()
                if self.moved and self.cut:
                    self.outside.put_back()

    def replicates(self) -> bool:
        """Return whether batches are to be whole: not in a thread, which has no common moment."""
        view = self.run.view
        return (view.alike or view.replicates) and get_ident() == view.context.thread

    def _seed(self) -> None:
        """Seed the generators for one fetch of this rank."""
        self._seeded += 1
        random.seed(f"{torch.initial_seed()} {self.run.world.rank} {self._seeded}")
        torch.default_generator.manual_seed(random.getrandbits(63))
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(random.getrandbits(32))

    def _workers(self, loader: Any) -> dict[str, Any]:
        """Divide the workers among the node's ranks.

        As many batches are requested ahead as in one process, since a sampler may draw random
        numbers between two batches.
        """
        workers, ahead = loader.num_workers, loader.prefetch_factor
        if not workers:
            return {}
        ranks, cores = self.run.world.local_world_size, len(os.sched_getaffinity(0))
        least = min(workers, max(-(-workers // ranks), cores // ranks))
        fewer = next(n for n in range(least, workers + 1) if ahead * workers % n == 0)
        return {"num_workers": fewer, "prefetch_factor": ahead * workers // fewer}

    def _own_seeds(self, loader: Any) -> torch.Generator:
        """Return a generator of workers' seeds for this rank; the script's advances as usual."""
        # on the default device, as in torch
        drawn = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        seed = (int(drawn.item()) + APART * self.run.world.rank) % 2**63
        return torch.Generator(drawn.device).manual_seed(seed)
