"""This rank's rows of every batch that a sampler makes up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DistributedSampler

from autoddp.view.cuts import even_sizes


class RowSampler(DistributedSampler[Any]):
    """Cuts the index batches of the script's own sampler.

    All ranks hold the same random state, so that sampler yields the order of one process on every
    rank. Nothing is repeated or dropped: sizes differ by one at most, and a batch with fewer rows
    than ranks goes to all of them.
    """

    def __init__(
        self, batches: Any, dataset: Any, ranks: int, rank: int, before_fetch: Callable[[], None]
    ) -> None:
        super().__init__(dataset, num_replicas=ranks, rank=rank, shuffle=False)
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
