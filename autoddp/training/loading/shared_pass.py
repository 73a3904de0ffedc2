"""One pass over a loader that the first rank of a node loads for all of its ranks."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from autoddp.comm.outcome import Outcome
from autoddp.comm.position import ACTING, EFFECT, MEETING
from autoddp.errors import Disagreement, RankEnded
from autoddp.training.loading.generators import Generators
from autoddp.training.loading.link import NodeLink

if TYPE_CHECKING:
    from autoddp.effects.run import Run

BATCH, RAISED, LOAD_IT = "batch", "raised", "yourself"


@dataclass
class LocalBatch:
    """One rank's rows of a batch of tensors.

    Attributes:
        rows: The batch, of these rows.
        per_rank: How many rows each rank has.
        whole: The whole batch, on the rank that loaded it.
    """

    rows: Any
    per_rank: tuple[int, ...]
    whole: Any = None


class SharedPass:
    """One pass, on one rank.

    Attributes:
        where: The loader, in words.
        batched: Whether torch's own function makes the batches, of which a rank takes its rows.
        messages: What the first rank has sent, and nobody has taken yet.
        asked: How often the script has asked for a batch.
    """

    def __init__(self, run: Run, link: NodeLink, where: str, batched: bool) -> None:
        self.run, self.link, self.where, self.batched = run, link, where, batched
        self.context, self.is_first = run.group.context, link.is_first
        self.messages: deque[Any] = deque()
        self.requested = 0
        self.number = link.begin(self)

    def states(self) -> Generators | None:
        """Return the states of generators; None in a thread of the script's: another may draw."""
        return Generators() if self._at_home() else None

    # ---- the first rank

    def give(self, batch: Any, before: Generators | None, from_worker: bool) -> Any:
        """Give a batch to all others, and return this rank's own.

        Args:
            batch: What the loader gave.
            before: The states of generators before it did.
            from_worker: Whether it comes from another process.

        Raises:
            Unfit: The batch cannot be handed over.
        """
        moved, size = _moved(before), self.run.group.size
        total = rows_of(tree_leaves(batch)) if self.batched else 0
        if total < size:
            message = self.number, (BATCH, self.requested, (batch, moved))
            self._send(lambda rank: message, from_worker)
            return batch
        per_rank = self.run.view.even_sizes(total).per_rank

        def rows(rank: int) -> LocalBatch:
            first = sum(per_rank[:rank])
            mine = tree_map(lambda x: x.narrow(0, first, per_rank[rank]), batch)
            return LocalBatch(mine, per_rank)

        self._send(
            lambda rank: (self.number, (BATCH, self.requested, (rows(rank), moved))),
            from_worker,
            from_worker,
        )
        own = rows(self.run.world.rank)
        own.whole = batch
        return own

    def fail(self, error: BaseException, before: Generators | None) -> None:
        """Tell all others what was raised."""
        self.notify(RAISED, (Outcome(error=error).to_bytes(), _moved(before)))

    def notify(self, kind: str, payload: Any) -> None:
        """Tell all others what became of what the script asks for, if that is no batch."""
        message = self.number, (kind, self.requested, payload)
        self._send(lambda rank: message, False)

    def _send(self, payload: Any, from_worker: bool, mapped: bool = False) -> None:
        with self.at(MEETING, "until the other ranks of the node have taken theirs"):
            self.link.send(payload, from_worker, mapped)

    # ---- the others

    def receive(self) -> tuple[str, Any]:
        """Wait for what became of what was asked for last: its kind, and what was said of it.

        Raises:
            StopIteration: The job is over, and a thread of the script's reads ahead.
        """
        with self.at(EFFECT, self._words()):
            while True:
                try:
                    kind, number, payload = self.link.receive(self)
                except RankEnded:
                    if self._at_home():
                        raise
                    raise StopIteration from None
                if number == self.requested:  # else an interrupt has kept the script from it
                    return kind, payload
                if number > self.requested:
                    raise Disagreement(f"rank {self.link.first} was interrupted in {self._words()}")

    def unpack(self, kind: str, payload: Any) -> Any:
        """Return the batch, or raise what the first rank raised; generators are as there then."""
        found, states = payload
        if states is not None:
            states.put_back()
        return Outcome.from_bytes(found).unwrap() if kind == RAISED else found

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
        return f"batch {self.requested} of {self.where}, loaded by rank {self.link.first}"


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
