"""The fetches of a loader that the first rank of a node loads for all.

Without workers every rank has the script's own iterator, whose sampler goes on as ever; only its
fetch is the first rank's. With workers, which that rank alone has, the others have an iterator that
takes from their own sampler as often as the first rank's does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from autoddp.errors import Disagreement
from autoddp.training.iterator import LoaderIterator
from autoddp.training.sharing.course import Course
from autoddp.training.sharing.lines import MADE, YOURSELF
from autoddp.training.sharing.parcel import Unfit
from autoddp.training.watch import OWN, Access, DrawWatch
from autoddp.view.generators import Generators

Part = Callable[[str], object]  # called with the reason why every rank loads all


class SharedFetch:
    """The fetch of a loader without workers: on the first rank the real one, else what it gave."""

    def __init__(self, course: Course, real: Any, own: list[Access], part: Part) -> None:
        self.course, self.real, self.part = course, real, part
        self.once = isinstance(real.dataset, IterableDataset)  # read from its beginning only
        self.own = [] if self.once else own
        self.each = False  # whether all have to load

    def fetch(self, index: Any) -> Any:
        """Fetch as the script's own does, and tell the others, or take what was told."""
        course = self.course
        course.asked += 1
        with course.context.internal():
            if not self.each and course.is_first:
                with course.acting():
                    return self._give(index)
            if not self.each:
                heard = course.hear()
                if not self._is_mine(*heard):
                    return course.taken(*heard)
            return self.real.fetch(index)

    def _give(self, index: Any) -> Any:
        course = self.course
        before = course.states()
        watch = DrawWatch(self.own) if self.own and before is not None else None
        try:
            batch = self.real.fetch(index)
        except (Exception, SystemExit) as error:
            course.fail(error, before)
            raise
        if watch is not None and watch.moved() == OWN:
            self._leave(OWN)
            return batch
        return self.give(batch, before)

    def give(self, batch: Any, before: Generators | None) -> Any:
        """Give a batch to the others, or have them fetch it, too."""
        try:
            return self.course.give(batch, before, False)
        except Unfit as unfit:
            self._leave(str(unfit))
            return batch

    def _leave(self, reason: str) -> None:
        self.each = True
        self.part(reason)
        self.course.pipes.say(YOURSELF, self.course.asked, reason)

    def _is_mine(self, kind: str, reason: Any) -> bool:
        """Return whether this rank has to fetch the batch, and all that follow."""
        if kind != YOURSELF:
            return False
        if self.once and self.course.asked > 1:
            raise Disagreement(f"{self.course.where}: {reason}; run with --loading each")
        self.each = True
        self.part(reason)
        return True


class Follower(_BaseDataLoaderIter):
    """The iterator of a loader with workers on the other ranks: it has a sampler and no workers."""

    def __init__(self, loader: Any, course: Callable[[], Course]) -> None:
        super().__init__(loader)
        self._course_now = course
        # an iterable's sampler says always the same
        self._steps = not isinstance(loader.dataset, IterableDataset)
        self._reset(loader, True)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._course = self._course_now()
        kind, said = self._course.hear()
        if kind != MADE:
            self._course.taken(kind, said)
        for _ in range(loader.prefetch_factor * loader.num_workers):
            self._step()

    def _next_data(self) -> Any:
        self._course.asked += 1
        heard = self._course.hear()
        self._step()  # an error of the sampler is this rank's own
        return self._course.taken(*heard)

    def _step(self) -> None:
        if self._steps:
            next(self._sampler_iter, None)


class Leading(LoaderIterator):
    """The iterator of a loader with workers on the first rank."""

    def __init__(self, inner: Any, course: Course) -> None:
        super().__init__(inner)
        self.course = course

    def __next__(self) -> Any:
        course = self.course
        course.asked += 1
        with course.acting():
            before = course.states()
            try:
                return course.give(next(self.inner), before, True)
            except Unfit as unfit:
                refused = Disagreement(f"{course.where}: {unfit}; run with --loading each")
                course.fail(refused, before)
                raise refused from None
            except (Exception, SystemExit) as error:
                course.fail(error, before)
                raise
