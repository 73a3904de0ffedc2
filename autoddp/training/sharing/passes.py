"""A pass over a loader that the first rank of a node loads for all, and its fetch without workers.

Without workers every rank has the script's own iterator, whose sampler goes on as ever; only its
fetch is the first rank's, in its own process. That rank looks whether the fetch changed what the
script can see: then the others fetch, too, what they have missed, from where the generators were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from autoddp.comm.position import ACTING, EFFECT, MEETING
from autoddp.errors import Disagreement
from autoddp.training.sharing.lines import BATCH, ENDED, RAISED, STEP, YOURSELF, Lines, close
from autoddp.training.sharing.memory import Maps, Memory
from autoddp.training.sharing.moves import Moves, follow, moves, raised, taken_apart
from autoddp.training.sharing.packing import pack
from autoddp.training.sharing.parcel import Parcel, Unfit
from autoddp.training.sharing.stamp import DatasetWatch
from autoddp.view.generators import Generators

if TYPE_CHECKING:
    from autoddp.effects.run import Run

STRIKES = 3  # batches that every rank loads, before it does so for ever
MOST = 10_000  # fetches that can be made up for


class Course:
    """One pass over a loader, on one rank.

    Attributes:
        number: All ranks number their passes alike, as they begin them.
        where: The loader, in words.
        batched: Whether torch's own function makes the batches, of which a rank takes its rows.
    """

    def __init__(self, run: Run, lines: Lines, number: int, where: str, batched: bool) -> None:
        self.run, self.lines, self.number, self.where = run, lines, number, where
        self.context = run.group.context
        self.batched = batched
        self.first = run.world.rank == lines.first
        self.asked = 0  # how often the script has asked for a batch
        self.memory, self.maps = Memory(lambda: lines.behind(number)), Maps()
        self._owes = False  # word that a batch was taken

    # ---- the first rank

    def say(self, kind: str, said: Any = None) -> None:
        """Tell the others what became of what was asked for last."""
        self.lines.say(self.number, kind, self.asked, said)

    def give(
        self, batch: Any, before: Generators | None, keeps: Callable[[Any], bool], apart: bool
    ) -> None:
        """Give a batch to all others.

        Raises:
            Unfit: The batch cannot be handed over.
        """
        changed = moves(before)
        parcel = pack((batch, changed), self.memory, keeps, apart, self.batched)
        try:
            said = parcel.said()
            self._wait_for_room()
            self.lines.say(self.number, BATCH, self.asked, said, parcel.descriptors)
        finally:
            parcel.close()
        self.memory.given()

    def fail(self, error: BaseException, before: Generators | None) -> None:
        """Tell all others what was raised."""
        self.say(RAISED, (taken_apart(error), moves(before)))

    def _wait_for_room(self) -> None:
        if self.lines.room(self.number):
            return
        with self.at(MEETING, "until the other ranks of the node have taken theirs"):
            while not self.lines.room(self.number):
                self.lines.wait()

    # ---- the others

    def hear(self, step: Callable[[], None] | None = None) -> tuple[str, Any, list[int]]:
        """Wait for what became of what was asked for last: kind, what was said, descriptors."""
        with self.at(EFFECT, self._words()):
            while True:
                kind, number, said, descriptors = self.lines.hear(self.number)
                if kind == STEP and step is not None:
                    step()
                elif kind == ENDED or number == self.asked:
                    return kind, said, descriptors
                elif number > self.asked:
                    raise Disagreement(
                        f"rank {self.lines.first} was interrupted in {self._words()}"
                    )
                else:
                    close(descriptors)  # an interrupt has kept the script from taking it

    def open(self, said: Any, descriptors: list[int]) -> tuple[Any, Moves]:
        """Open a batch that was given, and return with it what its fetch did to generators."""
        batch, changed = Parcel.heard(said, descriptors).open(self.maps if self.batched else None)
        self._owes = True
        if not self.batched:
            self.took()
        return batch, changed

    def took(self) -> None:
        """Tell the first rank that the memory of the last batch is not needed any more."""
        if self._owes:
            self._owes = False
            self.lines.took(self.number)

    def states(self) -> Generators | None:
        """Return the states of generators; None in a thread of the script's: another may draw."""
        return Generators() if self._at_home() else None

    def _at_home(self) -> bool:
        return self.context.is_rank() and self.context.on_script_thread()

    def at(self, kind: str, words: str) -> AbstractContextManager[None]:
        """Show to those who watch the job what this rank is in the midst of."""
        if not self._at_home():
            return nullcontext()
        return self.run.group.position.at(kind, words)

    def acting(self) -> AbstractContextManager[None]:
        """Show that the first rank does in here what the others wait for."""
        return self.at(ACTING, self._words())

    def _words(self) -> str:
        return (
            f"batch {self.asked} of {self.where}, pass {self.number}, "
            f"loaded by rank {self.lines.first}"
        )


class FirstRankFetch:
    """The fetch of a loader without workers, on the first rank."""

    def __init__(
        self, course: Course, real: Any, look: DatasetWatch, part: Callable[[str], bool]
    ) -> None:
        self.course, self.real, self.look = course, real, look
        self.part = part  # told why all have to load; returns whether they do from then on
        self.each = False

    def __getattr__(self, name: str) -> Any:
        if name == "real":
            raise AttributeError(name)
        return getattr(self.real, name)

    def fetch(self, index: Any) -> Any:
        """Fetch as the script's own does, and tell the others."""
        course = self.course
        course.asked += 1
        if self.each:
            with course.context.internal():
                return self.real.fetch(index)
        with course.acting():
            return self._fetch(index)

    def _fetch(self, index: Any) -> Any:
        course, batch, error = self.course, None, None
        before = course.states()
        self.look.before()
        try:
            with course.context.internal():
                batch = self.real.fetch(index)
        except (Exception, SystemExit) as found:
            error = found
        changed = self.look.after()
        changed = self.look.refused or (changed and f"its fetch changes {changed}")
        if not changed:
            try:
                if error is not None:
                    course.fail(error, before)
                else:
                    course.give(batch, before, self.look.stamp.keeps, False)
            except Unfit as unfit:
                changed = str(unfit)
        if changed:
            self.each = self.part(changed)
            course.say(YOURSELF, (changed, self.each))
        if error is not None:
            raise error
        return batch


class Taken:
    """The fetch of a loader without workers, on the other ranks."""

    def __init__(self, course: Course, real: Any, part: Callable[[str], bool], once: bool) -> None:
        self.course, self.real, self.part = course, real, part
        self.once = once  # it can be read from its beginning only: an iterable
        self.each = False
        self.missed: deque[tuple[Any, Generators | None]] = deque()
        self._after: Generators | None = None  # what was missed last, by then

    def __getattr__(self, name: str) -> Any:
        if name == "real":
            raise AttributeError(name)
        return getattr(self.real, name)

    def fetch(self, index: Any) -> Any:
        """Take the batch that the first rank fetched; fetch here what it cannot give."""
        self.course.asked += 1
        if self.each:
            return self._own(index)
        try:
            kind, said, descriptors = self.course.hear()
        except BaseException:
            self._note(index)
            raise
        if kind == BATCH:
            return self._opened(index, said, descriptors)
        self._note(index)
        if kind == RAISED:
            error, changed = said
            follow(changed)
            self._done()
            raise raised(error)
        if kind == ENDED:  # in a thread of the script's: the first rank asks for no more
            self.each = True
            return self._catch_up()
        reason, self.each = said
        self.part(reason)
        return self._catch_up()

    def _opened(self, index: Any, said: Any, descriptors: list[int]) -> Any:
        batch, changed = self.course.open(said, descriptors)
        if self.once:
            self._note(index)  # nothing has moved a generator since it was asked for
        follow(changed)
        self._done()
        return batch

    def _own(self, index: Any) -> Any:
        with self.course.context.internal():
            return self.real.fetch(index)

    def _note(self, index: Any) -> None:
        state = self.course.states()
        known = self.once and state and self._after is not None and state.same(self._after)
        self.missed.append((index, None if known else state))
        if len(self.missed) > MOST:
            self.missed.popleft()

    def _done(self) -> None:
        if not self.once:
            self.missed.clear()
        self._after = self.course.states() if self.once else None

    def _catch_up(self) -> Any:
        """Fetch what was missed, from where generators were; the script has all but the last."""
        if len(self.missed) == MOST and self.once:
            raise Disagreement(
                f"{self.course.where} is found to keep state after {MOST} batches, "
                "too many to make up for; run with --loading each"
            )
        missed, self.missed = self.missed, deque()
        while True:
            index, state = missed.popleft()
            if state is not None:
                state.put_back()
            if not missed:
                return self._own(index)
            with suppress(Exception):  # it was raised on all ranks, when it was missed
                self._own(index)
