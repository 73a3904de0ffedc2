"""One pass over a loader that the first rank of a node loads for all of its ranks."""

from __future__ import annotations

import pickle
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autoddp.comm.position import ACTING, EFFECT, MEETING
from autoddp.errors import Disagreement, RemoteError
from autoddp.training.sharing.lines import BATCH, ENDED, RAISED, Pipes
from autoddp.training.sharing.parcel import Parcel, Rows, pack
from autoddp.view.generators import Generators

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class Course:
    """One pass, on one rank.

    Attributes:
        where: The loader, in words.
        batched: Whether torch's own function makes the batches, of which a rank takes its rows.
    """

    def __init__(self, run: Run, pipes: Pipes, where: str, batched: bool) -> None:
        self.run, self.pipes, self.where, self.batched = run, pipes, where, batched
        self.context = run.group.context
        self.is_first = run.world.rank == pipes.first
        self.asked = 0  # how often the script has asked for a batch

    def states(self) -> Generators | None:
        """Return the states of generators; None in a thread of the script's: another may draw."""
        return Generators() if self._at_home() else None

    # ---- the first rank

    def give(self, batch: Any, before: Generators | None, apart: bool) -> Any:
        """Give a batch to all others, and return this rank's own.

        Args:
            batch: What the loader gave.
            before: The states of generators before it did.
            apart: Whether it comes from another process.

        Raises:
            Unfit: The batch cannot be handed over.
        """
        needed = self._needed(batch) if self.batched else None
        parcel = pack((batch, _moved(before)), apart, needed)
        try:
            if not self.pipes.room():
                with self.at(MEETING, "until the other ranks of the node have taken theirs"):
                    while not self.pipes.room():
                        self.pipes.wait()
            said = parcel.body, parcel.extents
            self.pipes.say(BATCH, self.asked, said, parcel.descriptors)
            return parcel.open()[0] if apart else batch
        finally:
            parcel.close()

    def fail(self, error: BaseException, before: Generators | None) -> None:
        """Tell all others what was raised."""
        self.pipes.say(RAISED, self.asked, (taken_apart(error), _moved(before)))

    def _needed(self, batch: Any) -> Rows | None:
        """Return which rows the other ranks of this node need of a batch; None if all of it."""
        total = rows_of(tree_leaves(batch))
        if total < self.run.world.world_size or not self.pipes.pipes:
            return None
        ends = [0, *accumulate(self.run.view.even_sizes(total).per_rank)]
        return ends[min(self.pipes.pipes)], ends[max(self.pipes.pipes) + 1], total

    # ---- the others

    def hear(self) -> tuple[str, Any]:
        """Wait for what became of what was asked for last: its kind, and what was said of it."""
        with self.at(EFFECT, self._words()):
            while True:
                (kind, number, said), descriptors = self.pipes.hear()
                parcel = Parcel(b"", [], descriptors)
                try:
                    if kind == BATCH:
                        self.pipes.took()
                        if number == self.asked:  # else an interrupt has kept the script from it
                            parcel.body, parcel.extents = said
                            said = parcel.open()
                finally:
                    parcel.close()
                if kind == ENDED or number == self.asked:
                    return kind, said
                if number > self.asked:
                    raise Disagreement(
                        f"rank {self.pipes.first} was interrupted in {self._words()}"
                    )

    def taken(self, kind: str, said: Any) -> Any:
        """Return the batch, or raise what the first rank raised; generators are as there then.

        Raises:
            StopIteration: That rank has left the pass, and a thread of the script's reads ahead.
            Disagreement: It has, and this rank goes on.
        """
        if kind == ENDED and not self._at_home():
            raise StopIteration
        if kind == ENDED:
            raise Disagreement(
                f"rank {self.pipes.first} has left a loop that another rank goes on with: "
                f"{self._words()}; a decision in the script differs between ranks"
            )
        found, states = said
        if states is not None:
            states.put_back()
        if kind == RAISED:
            raise raised(*found)
        return found

    # ---- for those who watch the job

    def _at_home(self) -> bool:
        return self.context.is_rank() and self.context.on_script_thread()

    def at(self, kind: str, words: str) -> AbstractContextManager[None]:
        """Show what this rank is in the midst of."""
        if not self._at_home():
            return nullcontext()
        return self.run.group.position.at(kind, words)

    def acting(self) -> AbstractContextManager[None]:
        """Show that the first rank does in here what the others wait for."""
        return self.at(ACTING, self._words())

    def _words(self) -> str:
        return f"batch {self.asked} of {self.where}, loaded by rank {self.pipes.first}"


def _moved(before: Generators | None) -> Generators | None:
    """Return the states of generators if any has moved since."""
    if before is None:
        return None
    after = Generators()
    return None if before.same(after) else after


def rows_of(leaves: list[Any]) -> int:
    """Return how many rows all of these tensors have; 0 where that cannot be said."""
    plain = all(type(x) is Tensor and x.dim() and x.layout is torch.strided for x in leaves)
    sizes = {x.shape[0] for x in leaves} if plain else set()
    return int(sizes.pop()) if len(sizes) == 1 else 0


def taken_apart(error: BaseException) -> tuple[Any, ...]:
    """Take an exception apart for `raised`; tell in words what cannot travel."""
    kind, given = type(error), error.__reduce__()[1]
    for by_call in (True, False):
        parts = kind, given, error.args, vars(error), by_call
        try:
            again = raised(*pickle.loads(pickle.dumps(parts)))
            if type(again) is kind and str(again) == str(error):
                return parts
        except Exception:  # what a class's own way to be made raises
            continue
    words = (f"the rank that loads for this node raised {kind.__name__}: {error}",)
    return RemoteError, words, words, {}, True


def raised(kind: Any, given: Any, args: Any, held: Any, by_call: bool) -> BaseException:
    """Make the exception that `taken_apart` took apart."""
    error: BaseException = kind(*given) if by_call else kind.__new__(kind, *given)
    error.args = args
    vars(error).update(held)
    return error
