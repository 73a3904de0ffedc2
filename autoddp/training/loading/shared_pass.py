"""One pass over a loader that the first rank of a node runs for all of its ranks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from socket import MSG_NOSIGNAL
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from autoddp.comm.outcome import Outcome
from autoddp.comm.position import ACTING, WAITING
from autoddp.errors import Disagreement, RankEnded
from autoddp.training.loading.generators import OWN, Drawing, Generators
from autoddp.training.loading.link import NodeLink
from autoddp.training.loading.message import NotTransferable, packed

if TYPE_CHECKING:
    from autoddp.effects.run import Run

BATCH, RAISED = "batch", "raised"


@dataclass
class LocalBatch:
    """One rank's rows of a batch.

    Attributes:
        rows: The batch, narrowed to these rows.
        per_rank: The number of rows on each rank.
        whole: The whole batch, on the rank that loaded it.
    """

    rows: Any
    per_rank: tuple[int, ...]
    whole: Any = None

    def pin_memory(self) -> LocalBatch:
        """Return a copy whose rows are in pinned memory, as torch's loader requests."""
        return replace(self, rows=tree_map(Tensor.pin_memory, self.rows))


class SharedPass:
    """One pass, on one rank.

    Attributes:
        where: The loader, in words.
        batched: Whether torch's default collate function makes the batches, so that rows are sent.
        requested: How many batches the script has requested.
    """

    def __init__(self, run: Run, link: NodeLink, where: str, batched: bool) -> None:
        self.run, self.where, self.batched = run, where, batched
        self.context, self.is_first, self.first = run.group.context, link.is_first, link.first
        self.requested, self.ends = 0, dict[int, Any]()
        with self.at(WAITING, self._words()):
            self.ends = link.begin()

    def __del__(self) -> None:
        for connection in self.ends.values():
            connection.close()

    # ---- the first rank

    def serve(
        self,
        load: Callable[[], Any],
        own: Sequence[Any] = (),
        from_worker: bool = False,
        all_states: bool = False,
    ) -> Any:
        """Load a batch, send it or the error to all others, and return this rank's own part.

        Args:
            load: Loads the batch.
            own: Generators that are objects, which do not advance on the other ranks.
            from_worker: Whether a worker process loads it.
            all_states: Whether to send the states of generators even if `load` does not draw.

        Raises:
            Disagreement: The batch cannot be sent, or one of `own` has advanced.
        """
        self.requested += 1
        # in a thread others may draw meanwhile
        here = self._on_script_thread() and not from_worker
        before = Generators(own) if here else None
        with self.at(ACTING, self._words()):
            try:
                with Drawing(lambda: before):
                    batch = load()
                if before is not None and before.own and before.moved() == OWN:
                    before.drop_those_of_frames()
                    if before.moved() == OWN:
                        raise NotTransferable(OWN)
                moved = Generators() if all_states else _moved(before)
                return self._send_batch(batch, moved, from_worker)
            except NotTransferable as refusal:
                refused = Disagreement(f"{self.where}: {refusal}; run with --loading each")
                self._send_error(refused, None)
                raise refused from None
            except (Exception, SystemExit) as error:
                self._send_error(error, _moved(before))
                raise

    def _send_batch(self, batch: Any, moved: Generators | None, from_worker: bool) -> Any:
        """Send a batch, or each rank its rows, and return what the others have."""
        size = self.run.group.size
        whole = self.run.view.replicates and self._on_script_thread()
        total = rows_of(tree_leaves(batch)) if self.batched and not whole else 0
        if total < size:
            self._send(BATCH, (batch, moved), list(self.ends), from_worker)
            return batch
        per_rank = self.run.view.even_sizes(total).per_rank

        def rows(rank: int) -> LocalBatch:
            first = sum(per_rank[:rank])
            local = tree_map(lambda x: x.narrow(0, first, per_rank[rank]), batch)
            return LocalBatch(local, per_rank)

        for rank in list(self.ends):
            self._send(BATCH, (rows(rank), moved), [rank], from_worker)
        return replace(rows(self.run.world.rank), whole=batch)

    def _send_error(self, error: BaseException, moved: Generators | None) -> None:
        self._send(RAISED, (Outcome(error=error).to_bytes(), moved), list(self.ends))

    def _send(self, kind: str, payload: Any, ranks: list[int], from_worker: bool = False) -> None:
        message = packed((kind, self.requested, payload), from_worker)
        with self.at(WAITING, "until the other ranks of the node have received theirs"):
            for rank in ranks:
                try:
                    for part in message:
                        self.ends[rank].sendall(part, MSG_NOSIGNAL)
                except OSError:  # it has left the pass, or has ended
                    self.ends.pop(rank).close()

    # ---- the others

    def receive(self) -> Any:
        """Wait for the next batch; return it or raise its error, and set the generators.

        Raises:
            StopIteration: The first rank has left the pass, and a thread of the script reads ahead.
            RankEnded: The first rank has ended.
        """
        self.requested += 1
        with self.at(WAITING, self._words()):
            try:
                kind, number, (found, states) = pickle.load(self.ends[self.first])
            except (EOFError, OSError, pickle.UnpicklingError):
                if not self._on_script_thread():
                    raise StopIteration from None
                raise RankEnded(
                    f"rank {self.first} has ended, and this rank waits for a batch that it loads"
                ) from None
        if number != self.requested:
            raise Disagreement(f"rank {self.first} was interrupted in {self._words()}")
        if states is not None:
            states.put_back()
        return Outcome.from_bytes(found).unwrap() if kind == RAISED else found

    # ---- for monitoring

    def _on_script_thread(self) -> bool:
        return self.context.is_rank() and self.context.on_script_thread()

    def at(self, kind: str, words: str) -> AbstractContextManager[None]:
        """Show what this rank waits for or does."""
        if not self._on_script_thread():
            return nullcontext()
        return self.run.group.position.at(kind, words)

    def _words(self) -> str:
        return f"batch {self.requested} of {self.where}, loaded by rank {self.first}"


def _moved(before: Generators | None) -> Generators | None:
    """Return the states of generators, None if nothing was drawn since `before`."""
    return Generators() if before is not None and before.moved() else None


def rows_of(leaves: list[Any]) -> int:
    """Return the common number of rows of these tensors; 0 if there is none."""
    plain = all(type(x) is Tensor and x.dim() and x.layout is torch.strided for x in leaves)
    sizes = {x.shape[0] for x in leaves} if plain else set()
    return int(sizes.pop()) if len(sizes) == 1 else 0
