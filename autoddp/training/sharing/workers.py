"""Sharing of a loader with worker processes, which the first rank of the node alone has.

The others have an iterator that takes from their own sampler whenever the first rank's did, so that
the sampler is as far there, whatever it draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from autoddp.errors import Disagreement
from autoddp.training.iterator import LoaderIterator
from autoddp.training.sharing.lines import BATCH, ENDED, RAISED
from autoddp.training.sharing.moves import follow, raised
from autoddp.training.sharing.parcel import Unfit
from autoddp.training.sharing.passes import Course


class Steps:
    """A sampler that has the other ranks told whenever it is asked for more."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain
        self.tell: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self.plain)

    def __getattr__(self, name: str) -> Any:
        if name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)

    def __iter__(self) -> Iterator[Any]:
        return self._steps(iter(self.plain))

    def _steps(self, inner: Iterator[Any]) -> Iterator[Any]:
        while True:
            self.tell()
            try:
                index = next(inner)
            except StopIteration:
                return
            yield index


class Follower(_BaseDataLoaderIter):
    """The iterator of a loader with workers on the other ranks: it has a sampler and no workers."""

    def __init__(self, loader: Any, course: Callable[[], Course]) -> None:
        super().__init__(loader)
        self._course_now = course
        self._raised: Exception | None = None
        self._reset(loader, True)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._course = self._course_now()
        self._heard()

    def _next_data(self) -> Any:
        self._course.asked += 1
        return self._heard()

    def _heard(self) -> Any:
        kind, said, descriptors = self._course.hear(self._step)
        if kind == BATCH:
            batch, changed = self._course.open(said, descriptors)
            follow(changed)
            return batch
        if kind == RAISED:
            follow(said[1])
            found = raised(said[0])
            if self._raised is not None and type(self._raised) is type(found):
                raise self._raised  # of this rank's own sampler
            raise found
        if kind == ENDED:
            raise StopIteration
        return None

    def _step(self) -> None:
        try:
            next(self._sampler_iter)
        except StopIteration:
            pass
        except Exception as error:
            self._raised = error


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
                batch = next(self.inner)
            except (Exception, SystemExit) as error:
                course.fail(error, before)
                raise
            try:
                course.give(batch, before, _nothing, True)
            except Unfit as unfit:
                refused = Disagreement(f"{course.where}: {unfit}; run with --loading each")
                course.fail(refused, before)
                raise refused from None
        return batch


def _nothing(_: Any) -> bool:
    """Return False: a data set in another process keeps nothing that comes from there."""
    return False
