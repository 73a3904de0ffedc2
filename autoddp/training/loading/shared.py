"""Loaders that the first rank of a node runs for all of its ranks.

Without workers, every rank runs the script's iterator and sampler, and only the first rank fetches.
With workers, which only the first rank has, the others step their own sampler as often as it does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, default_collate

from autoddp.training.loading.link import NodeLink, connect
from autoddp.training.loading.plan import Plan
from autoddp.training.loading.shared_pass import SharedPass

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class Sharing:
    """The shared loaders of one rank; ranks connect at the first of them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.link: NodeLink | None = None

    def close(self) -> None:
        """Close the connections, if there are any."""
        if self.link is not None:
            self.link.close()

    def start(self, loader: Any, make: Callable[[], Any], plan: Plan) -> tuple[Any, SharedPass]:
        """Return an iterator that the first rank of the node runs for all, and its pass.

        Args:
            loader: The DataLoader.
            make: Its own `__iter__`.
            plan: The loader's plan.
        """
        shared = self.begin(loader, plan)
        if loader.num_workers and not shared.is_first:
            follower = loader._iterator
            follower = FollowerIterator(loader) if follower is None else follower
            if loader.persistent_workers:
                loader._iterator = follower
            return follower.begin(loader, shared), shared
        inner = make()
        if not loader.num_workers:
            self.take_over(inner, shared, plan)
        return inner, shared

    def begin(self, loader: Any, plan: Plan) -> SharedPass:
        """Begin a pass. A collective call of the ranks of each node."""
        self.link = self.link or connect(self.run)
        batched = loader._auto_collation and loader.collate_fn is default_collate
        return SharedPass(self.run, self.link, plan.where, batched)

    def take_over(self, inner: Any, shared: SharedPass, plan: Plan) -> None:
        """Share what an iterator without workers fetches from here on."""
        real = inner._dataset_fetcher
        own = [] if isinstance(real.dataset, IterableDataset) else plan.generators or []

        def fetch(index: Any) -> Any:
            with shared.context.internal():
                if shared.is_first:
                    return shared.serve(partial(real.fetch, index), own)
                return shared.receive()

        inner._dataset_fetcher = SimpleNamespace(fetch=fetch)


class FollowerIterator(_BaseDataLoaderIter):
    """The iterator of a loader with workers on ranks other than the first: it has no workers."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        # the sampler of an iterable data set yields nothing but None
        self._steps = not isinstance(loader.dataset, IterableDataset)

    def begin(self, loader: Any, shared: SharedPass) -> FollowerIterator:
        """Begin a pass."""
        self._reset(loader, True)
        self._shared = shared
        for _ in range(loader.prefetch_factor * loader.num_workers):
            self._step()
        return self

    def _next_data(self) -> Any:
        self._step()
        batch = self._shared.receive()
        return pin_memory(batch, self._pin_memory_device) if self._pin_memory else batch

    def _step(self) -> None:
        if self._steps:
            next(self._sampler_iter, None)
