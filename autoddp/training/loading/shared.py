"""Loaders that the first rank of a node runs for all of its ranks.

Without workers every rank has the script's own iterator, whose sampler goes on as ever; only its
fetch is the first rank's. With workers, which that rank alone has, the others have an iterator that
takes from their own sampler as often as the first rank's does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, default_collate

from autoddp import torch_internals
from autoddp.errors import Disagreement
from autoddp.training.iterator import LoaderIterator
from autoddp.training.loading.generators import Generators
from autoddp.training.loading.link import NodeLink, connect
from autoddp.training.loading.message import NotTransferable
from autoddp.training.loading.plan import Plan
from autoddp.training.loading.sampling import Fetching
from autoddp.training.loading.shared_pass import LOAD_IT, SharedPass
from autoddp.training.loading.watch import OWN, Access, DrawWatch

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class SharedIterator(LoaderIterator):
    """The iterator of a loader that is shared.

    Attributes:
        shared: The pass.
        pins: The device that batches are pinned for, each rank its own; empty where none are.
    """

    def __init__(self, inner: Any, shared: SharedPass, pin_to: str) -> None:
        super().__init__(inner)
        self.shared, self.pin_to = shared, pin_to


class Sharing:
    """The loaders of one rank that are shared; ranks connect when the first of them is."""

    def __init__(
        self, run: Run, fetching: Fetching, on_fallback: Callable[[str, str], None]
    ) -> None:
        self.run, self.fetching = run, fetching
        self.on_fallback = (
            on_fallback  # called with the loader's place where every rank has to load, and why
        )
        self.link: NodeLink | None = None
        self.alone = ""  # why the ranks of this node cannot share
        self._begun: SharedPass | None = None  # that of the iterator that is being made

    def connect(self) -> str:
        """Connect all ranks of each node; return why that cannot be, in words, or nothing."""
        if self.link is None and not self.alone:
            self.link = connect(self.run)
            if self.link is None:
                self.alone = "its ranks do not reach each other's sockets"
        return self.alone

    def close(self) -> None:
        """Close the connections when the session ends."""
        if self.link is not None:
            self.link.close()

    def start(self, loader: Any, make: Callable[[], Any], plan: Plan, sampler: Any) -> Any:
        """Return an iterator that gives every rank of the node what the first one's loader gives.

        Args:
            loader: The DataLoader.
            make: Its own `__iter__`.
            plan: The loader's plan.
            sampler: Where indices come from, if not from the loader's own.
        """
        with self._pinning_later(loader) as pin_to, self.fetching.sampled(sampler):
            shared = self._begun = self._begin(loader, plan)
            try:
                inner = make()
            finally:
                self._begun = None
        if not loader.num_workers:
            return self._without(inner, shared, plan, pin_to)
        return SharedIterator(
            LeaderIterator(inner, shared) if shared.is_first else inner, shared, pin_to
        )

    def take_over(self, loader: Any, inner: Any, plan: Plan) -> SharedIterator:
        """Go on with an iterator without workers, of which nothing was given to the script yet."""
        pin_to = (inner._pin_memory and inner._pin_memory_device) or ""
        inner._pin_memory = False
        return self._without(inner, self._begin(loader, plan), plan, pin_to)

    def follower(self, loader: Any, plain: Callable[[], Any]) -> Any:
        """Make the iterator of `DataLoader.__iter__`: on ranks that have no workers, ours."""
        shared = self._begun
        here = self.run.view.context.on_script_thread() and loader.num_workers
        if shared is None or shared.is_first or not here:
            return plain()
        return FollowerIterator(loader, lambda: self._begun)

    def _without(self, inner: Any, shared: SharedPass, plan: Plan, pin_to: str) -> SharedIterator:
        on_fallback = functools.partial(self.on_fallback, plan.where)
        inner._dataset_fetcher = SharedFetch(
            shared, inner._dataset_fetcher, plan.generators, on_fallback
        )
        return SharedIterator(inner, shared, pin_to)

    def _begin(self, loader: Any, plan: Plan) -> SharedPass:
        assert self.link is not None
        batched = loader._auto_collation and loader.collate_fn is default_collate
        return SharedPass(self.run, self.link, plan.where, batched)

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


class SharedFetch:
    """The fetch of a loader without workers: on the first rank the real one, else what it gave."""

    def __init__(
        self, shared: SharedPass, real: Any, own: list[Access], on_fallback: Callable[[str], object]
    ) -> None:
        self.shared, self.real, self.on_fallback = shared, real, on_fallback
        self.once = isinstance(real.dataset, IterableDataset)  # read from its beginning only
        self.own = [] if self.once else own
        self.loads_itself = False  # whether all have to load

    def fetch(self, index: Any) -> Any:
        """Fetch as the script's own does, and tell the others, or take what was told."""
        shared = self.shared
        shared.requested += 1
        with shared.context.internal():
            if not self.loads_itself and shared.is_first:
                with shared.acting():
                    return self._give(index)
            if not self.loads_itself:
                kind, payload = shared.receive()
                if kind != LOAD_IT:
                    return shared.unpack(kind, payload)
                self._load_from_here(payload)
            return self.real.fetch(index)

    def _give(self, index: Any) -> Any:
        before = self.shared.states()
        watch = DrawWatch(self.own) if self.own and before is not None else None
        try:
            batch = self.real.fetch(index)
        except (Exception, SystemExit) as error:
            self.shared.fail(error, before)
            raise
        if watch is not None and watch.moved() == OWN:
            return self._fall_back(OWN, batch)
        return self.give(batch, before)

    def give(self, batch: Any, before: Generators | None) -> Any:
        """Give a batch to the others, or have them fetch it, too."""
        try:
            return self.shared.give(batch, before, False)
        except NotTransferable as refusal:
            return self._fall_back(str(refusal), batch)

    def _fall_back(self, reason: str, batch: Any) -> Any:
        self.loads_itself = True
        self.on_fallback(reason)
        self.shared.notify(LOAD_IT, reason)
        return batch

    def _load_from_here(self, reason: str) -> None:
        """Load this batch, and all that follow, on this rank, too."""
        if self.once and self.shared.requested > 1:
            raise Disagreement(f"{self.shared.where}: {reason}; run with --loading each")
        self.loads_itself = True
        self.on_fallback(reason)


class FollowerIterator(_BaseDataLoaderIter):
    """The iterator of a loader with workers on the other ranks: it has a sampler and no workers."""

    def __init__(self, loader: Any, begun: Callable[[], SharedPass | None]) -> None:
        super().__init__(loader)
        self._begun = begun
        # an iterable's sampler says always the same
        self._steps = not isinstance(loader.dataset, IterableDataset)
        self._reset(loader, True)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        shared = self._begun()
        assert shared is not None
        self._shared = shared
        for _ in range(loader.prefetch_factor * loader.num_workers):
            self._step()

    def _next_data(self) -> Any:
        self._shared.requested += 1
        heard = self._shared.receive()
        self._step()  # an error of the sampler is this rank's own
        return self._shared.unpack(*heard)

    def _step(self) -> None:
        if self._steps:
            next(self._sampler_iter, None)


class LeaderIterator(LoaderIterator):
    """The iterator of a loader with workers on the first rank."""

    def __init__(self, inner: Any, shared: SharedPass) -> None:
        super().__init__(inner)
        self.shared = shared

    def __next__(self) -> Any:
        shared = self.shared
        shared.requested += 1
        with shared.acting():
            before = shared.states()
            try:
                return shared.give(next(self.inner), before, True)
            except NotTransferable as refusal:
                refused = Disagreement(f"{shared.where}: {refusal}; run with --loading each")
                shared.fail(refused, before)
                raise refused from None
            except (Exception, SystemExit) as error:
                shared.fail(error, before)
                raise
