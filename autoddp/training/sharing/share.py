"""Loaders that the first rank of a node runs for all of its ranks."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data.dataloader import default_collate

from autoddp import torch_internals
from autoddp.training.iterator import LoaderIterator
from autoddp.training.sampling import Fetching
from autoddp.training.sharing.course import Course
from autoddp.training.sharing.fetch import Follower, Leading, SharedFetch
from autoddp.training.sharing.lines import ENDED, MADE, NodeLines, Pipes, meet
from autoddp.training.sharing.plan import Plan

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class Pass(LoaderIterator):
    """The iterator that the script gets; when it is gone, so is the pass.

    Attributes:
        pins: The device that batches are pinned for, each rank its own; empty where none are.
    """

    def __init__(self, inner: Any, course: Course, pins: str) -> None:
        super().__init__(inner)
        self.course, self.pins = course, pins
        weakref.finalize(self, _end, course.pipes, course.is_first).atexit = False


class Sharing:
    """The lines between this node's ranks, made when first needed."""

    def __init__(self, run: Run, fetching: Fetching, part: Callable[[str, str], None]) -> None:
        self.run, self.fetching = run, fetching
        self.part = part  # called with the loader's place where every rank has to load, and why
        self.lines: NodeLines | None = None
        self.alone = ""  # why the ranks of this node cannot share
        self._course: Course | None = None  # of the iterator that is being made

    def meet(self) -> str:
        """Connect all ranks of each node; return why that cannot be, in words, or nothing."""
        if self.lines is None and not self.alone:
            self.lines = meet(self.run)
            if self.lines is None:
                self.alone = "its ranks do not reach each other's sockets"
        return self.alone

    def close(self) -> None:
        """Close the lines when the session ends."""
        if self.lines is not None:
            self.lines.close()

    def start(self, loader: Any, make: Callable[[], Any], plan: Plan, sampler: Any) -> Pass:
        """Return an iterator that gives every rank of the node what the first one's loader gives.

        Args:
            loader: The DataLoader.
            make: Its own `__iter__`.
            plan: The loader's plan.
            sampler: Where indices come from, if not from the loader's own.
        """
        course = self._begin(loader, plan)
        with self._pinning_later(loader) as pins, self.fetching.sampled(sampler):
            if loader.num_workers:
                return Pass(self._with_workers(make, course), course, pins)
            inner = make()
        return self._without(inner, course, plan, pins)

    def take_over(self, loader: Any, inner: Any, plan: Plan) -> Pass:
        """Go on with an iterator without workers, of which nothing was given to the script yet."""
        pins = (inner._pin_memory and inner._pin_memory_device) or ""
        inner._pin_memory = False
        return self._without(inner, self._begin(loader, plan), plan, pins)

    def _without(self, inner: Any, course: Course, plan: Plan, pins: str) -> Pass:
        part = functools.partial(self.part, plan.where)
        inner._dataset_fetcher = SharedFetch(course, inner._dataset_fetcher, plan.own, part)
        return Pass(inner, course, pins)

    def follower(self, loader: Any, plain: Callable[[], Any]) -> Any:
        """Make the iterator of `DataLoader.__iter__`: on ranks that have no workers, ours."""
        course = self._course
        if course is None or course.is_first or not self.run.view.context.on_script_thread():
            return plain()
        return Follower(loader, self._now)

    def _now(self) -> Course:
        assert self._course is not None
        return self._course

    def _begin(self, loader: Any, plan: Plan) -> Course:
        assert self.lines is not None
        batched = loader._auto_collation and loader.collate_fn is default_collate
        return Course(self.run, self.lines.begin(), plan.where, batched)

    def _with_workers(self, make: Callable[[], Any], course: Course) -> Any:
        self._course = course
        try:
            if not course.is_first:
                return make()
            before = course.states()
            try:
                inner = make()
            except Exception as error:
                course.fail(error, before)
                raise
            course.pipes.say(MADE, 0)
            return Leading(inner, course)
        finally:
            self._course = None

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


def _end(pipes: Pipes, is_first: bool) -> None:
    """End a pass; the garbage collector may do so at any time."""
    if is_first:
        pipes.say(ENDED, 0)
    pipes.close()
