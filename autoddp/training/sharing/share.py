"""Loaders that the first rank of a node runs for all of its ranks."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import default_collate

from autoddp import torch_internals
from autoddp.comm.topology import nodes
from autoddp.training.iterator import LoaderIterator
from autoddp.training.sampling import Fetching
from autoddp.training.sharing.lines import MADE, RAISED, STEP, Lines, meet
from autoddp.training.sharing.moves import moves, taken_apart
from autoddp.training.sharing.passes import STRIKES, Course, FirstRankFetch, Taken
from autoddp.training.sharing.stamp import DatasetWatch
from autoddp.training.sharing.workers import Follower, Leading, Steps

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class Pass(LoaderIterator):
    """The iterator that the script gets; when it is gone, so is the pass."""

    def __init__(self, inner: Any, course: Course, pins: str) -> None:
        super().__init__(inner)
        self.batched, self.took, self.memory = course.batched, course.took, course.memory
        self.pins = pins  # the device that batches are pinned for; empty: none
        end = course.lines.end if course.first else course.lines.forget
        weakref.finalize(self, end, course.number).atexit = False


class Sharing:
    """The lines between this node's ranks, made when first needed, and their count of passes."""

    def __init__(self, run: Run, fetching: Fetching) -> None:
        self.run, self.fetching = run, fetching
        self.lines: Lines | None = None
        self.alone = ""  # why the ranks of this node cannot share
        self._numbers = itertools.count()
        self._course: Course | None = None  # of the iterator that is being made
        self._kept: weakref.WeakKeyDictionary[Any, Steps] = weakref.WeakKeyDictionary()
        self._strikes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def meet(self) -> str:
        """Connect all ranks of each node; return why that cannot be, in words, or nothing."""
        if self.lines is None and not self.alone:
            world, group = self.run.world, self.run.group
            placed = nodes(self.run.group)
            ranks = [rank for rank, node in enumerate(placed) if node == placed[world.rank]]
            lines = meet(world.rank, ranks, group.store)
            self.lines = lines
            if not group.agree(lines is not None):
                self.close()
                self.lines = None
                self.alone = "its ranks do not reach each other's sockets"
        return self.alone

    def close(self) -> None:
        """Close the lines when the session ends."""
        if self.lines is not None:
            self.lines.close()

    def start(
        self, loader: Any, make: Callable[[], Any], where: str, part: Callable[[str], None]
    ) -> Any:
        """Return an iterator that gives every rank of the node what the first one's loader gives.

        Args:
            loader: The DataLoader.
            make: Its own `__iter__`.
            where: The loader, in words.
            part: Told why every rank loads for itself, from the next pass on.
        """
        assert self.lines is not None
        batched = loader._auto_collation and loader.collate_fn is default_collate
        course = Course(self.run, self.lines, next(self._numbers), where, batched)
        with self._pinning_later(loader) as pins:
            inner = self._with_workers(loader, make, course) if loader.num_workers else make()
        if not loader.num_workers:
            self._without(loader, inner, course, part)
        return Pass(inner, course, pins)

    def follower(self, loader: Any, plain: Callable[[], Any]) -> Any:
        """Make the iterator of `DataLoader.__iter__`: on ranks that have no workers, ours."""
        course = self._course
        if course is None or course.first or not self.run.view.context.on_script_thread():
            return plain()
        return Follower(loader, self._now)

    def _now(self) -> Course:
        assert self._course is not None
        return self._course

    def _without(
        self, loader: Any, inner: Any, course: Course, part: Callable[[str], None]
    ) -> None:
        once = isinstance(loader.dataset, IterableDataset)

        def parted(reason: str) -> bool:
            strikes = self._strikes[loader] = self._strikes.get(loader, 0) + 1
            if not once and strikes < STRIKES:
                return False
            part(reason)
            return True

        real = inner._dataset_fetcher
        if course.first:
            if course.batched:
                real.collate_fn = course.memory.collate
            look = DatasetWatch(loader.dataset, loader.collate_fn)
            inner._dataset_fetcher = FirstRankFetch(course, real, look, parted)
        else:
            inner._dataset_fetcher = Taken(course, real, parted, once)

    def _with_workers(self, loader: Any, make: Callable[[], Any], course: Course) -> Any:
        self._course = course
        try:
            if not course.first:
                return make()
            # an iterable's sampler says always the same
            if not isinstance(loader.dataset, IterableDataset):
                self.fetching.starting = self._stepping(loader, course)
            before = course.states()
            try:
                inner = make()
            except Exception as error:
                course.say(RAISED, (taken_apart(error), moves(before)))
                raise
            course.say(MADE)
            return Leading(inner, course)
        finally:
            self._course = self.fetching.starting = None

    def _stepping(self, loader: Any, course: Course) -> Steps:
        """Wrap the sampler to tell others; persistent workers keep the iterator and its sampler."""
        steps = self._kept.get(loader)
        if steps is None:
            steps = Steps(loader._index_sampler)
            if loader.persistent_workers:
                self._kept[loader] = steps
        steps.tell = lambda: course.say(STEP)
        return steps

    @contextmanager
    def _pinning_later(self, loader: Any) -> Iterator[str]:
        """Pin no batches before they are handed over; yield the device for which to pin them then.

        Pinned memory is each process's own. The device is empty where nothing is to be pinned.
        """
        if not loader.pin_memory or not torch.accelerator.is_available():
            yield ""
            return
        device = torch_internals.accelerator()
        loader.pin_memory = False
        try:
            yield device.type if device is not None else ""
        finally:
            loader.pin_memory = True
