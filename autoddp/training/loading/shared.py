"""Loaders that the first rank of a node runs for all of its ranks.

Without workers, every rank runs the script's iterator and sampler, and only the first rank fetches.
With workers, which only the first rank has, the others step their own sampler as often as it does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
from autoddp.training.loading.sampling import Fetching, changed
from autoddp.training.loading.shared_pass import LOAD_IT, SharedPass
from autoddp.training.loading.watch import OWN, Access, DrawWatch

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class SharedIterator(LoaderIterator):
    """The iterator of a shared loader.

    Attributes:
        shared: The pass.
        pin_to: The device for which each rank pins batches; empty for none.
        sends: Whether it sends the batches of its workers, as on the first rank.
    """

    def __init__(self, inner: Any, shared: SharedPass, pin_to: str, sends: bool = False) -> None:
        super().__init__(inner)
        self.shared, self.pin_to, self.sends = shared, pin_to, sends

    def __next__(self) -> Any:
        if not self.sends:
            return next(self.inner)
        shared = self.shared
        shared.requested += 1
        with shared.acting():
            before = shared.states()
            try:
                return shared.send_batch(next(self.inner), before, True)
            except NotTransferable as refusal:
                refused = Disagreement(f"{shared.where}: {refusal}; run with --loading each")
                shared.send_error(refused, before)
                raise refused from None
            except (Exception, SystemExit) as error:
                shared.send_error(error, before)
                raise


class Sharing:
    """The shared loaders of one rank; ranks connect at the first of them."""

    def __init__(self, run: Run, fetching: Fetching, report: Callable[[str, str], None]) -> None:
        self.run, self.fetching = run, fetching
        self.report = report  # called with a loader's name and why every rank loads
        self.link: NodeLink | None = None
        self.alone = ""  # why the ranks of this node cannot connect
        self._begun: SharedPass | None = None  # of the iterator that is being made

    def connect(self) -> str:
        """Connect the ranks of each node; return the reason if they cannot, else nothing."""
        if self.link is None and not self.alone:
            self.link = connect(self.run)
            if self.link is None:
                self.alone = "the ranks of a node cannot connect to each other"
        return self.alone

    def close(self) -> None:
        """Close the connections, if there are any."""
        if self.link is not None:
            self.link.close()

    def start(self, loader: Any, make: Callable[[], Any], plan: Plan, sampler: Any) -> Any:
        """Return an iterator that gives all ranks of the node the batches of the first one.

        Args:
            loader: The DataLoader.
            make: Its own `__iter__`.
            plan: The loader's plan.
            sampler: Replaces the loader's index sampler if it is given.
        """
        pins = loader.pin_memory and torch.accelerator.is_available()
        device = torch_internals.accelerator() if pins else None
        pin_to = "" if device is None else device.type
        # each rank pins its own memory, after the batch was sent
        unpinned = changed(loader, pin_memory=loader.pin_memory and not pins)
        with unpinned, self.fetching.sampled(sampler):
            shared = self._begun = self._begin(loader, plan)
            try:
                inner = make()
            finally:
                self._begun = None
        if not loader.num_workers:
            return self._without(inner, shared, plan, pin_to)
        return SharedIterator(inner, shared, pin_to, sends=shared.is_first)

    def take_over(self, loader: Any, inner: Any, plan: Plan) -> SharedIterator:
        """Continue an iterator without workers that has given no batch to the script yet."""
        pin_to = (inner._pin_memory and inner._pin_memory_device) or ""
        inner._pin_memory = False
        return self._without(inner, self._begin(loader, plan), plan, pin_to)

    def follower(self, loader: Any, make: Callable[[], Any]) -> Any:
        """Make the iterator of a loader; on ranks without workers one that follows the first."""
        shared = self._begun
        here = self.run.view.context.on_script_thread() and loader.num_workers
        if shared is None or shared.is_first or not here:
            return make()
        return FollowerIterator(loader, lambda: self._begun)

    def _without(self, inner: Any, shared: SharedPass, plan: Plan, pin_to: str) -> SharedIterator:
        report, fetch = functools.partial(self.report, plan.where), inner._dataset_fetcher
        inner._dataset_fetcher = SharedFetch(shared, fetch, plan.generators, report)
        return SharedIterator(inner, shared, pin_to)

    def _begin(self, loader: Any, plan: Plan) -> SharedPass:
        assert self.link is not None
        batched = loader._auto_collation and loader.collate_fn is default_collate
        return SharedPass(self.run, self.link, plan.where, batched)


class SharedFetch:
    """The fetch of a loader without workers: on the first rank its own, else by the link."""

    def __init__(
        self, shared: SharedPass, real: Any, own: list[Access], report: Callable[[str], object]
    ) -> None:
        self.shared, self.real, self.report = shared, real, report
        self.once = isinstance(real.dataset, IterableDataset)  # it can only be read from the start
        self.own = [] if self.once else own
        self.loads_itself = False  # whether every rank loads

    def fetch(self, index: Any) -> Any:
        """Fetch and send a batch on the first rank; receive it on the others."""
        shared = self.shared
        shared.requested += 1
        with shared.context.internal():
            if not self.loads_itself and shared.is_first:
                with shared.acting():
                    return self._fetch_and_send(index)
            if not self.loads_itself:
                kind, payload = shared.receive()
                if kind != LOAD_IT:
                    return shared.unpack(kind, payload)
                self._fall_back(payload)
            return self.real.fetch(index)

    def _fetch_and_send(self, index: Any) -> Any:
        before = self.shared.states()
        watch = DrawWatch(self.own) if self.own and before is not None else None
        try:
            batch = self.real.fetch(index)
        except (Exception, SystemExit) as error:
            self.shared.send_error(error, before)
            raise
        if watch is not None and watch.moved() == OWN:
            self._fall_back(OWN)
            return batch
        return self.send_batch(batch, before)

    def send_batch(self, batch: Any, before: Generators | None) -> Any:
        """Send a batch to the other ranks; if it cannot be sent, they fetch it themselves."""
        try:
            return self.shared.send_batch(batch, before, False)
        except NotTransferable as refusal:
            self._fall_back(str(refusal))
            return batch

    def _fall_back(self, reason: str) -> None:
        """Load this batch and all that follow on every rank."""
        shared = self.shared
        if self.once and shared.requested > 1 and not shared.is_first:
            raise Disagreement(f"{shared.where}: {reason}; run with --loading each")
        self.loads_itself = True
        self.report(reason)
        if shared.is_first:
            shared.notify(LOAD_IT, reason)


class FollowerIterator(_BaseDataLoaderIter):
    """The iterator of a loader with workers on ranks other than the first: it has no workers."""

    def __init__(self, loader: Any, begun: Callable[[], SharedPass | None]) -> None:
        super().__init__(loader)
        self._begun = begun
        # the sampler of an iterable data set yields nothing but None
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
        answer = self._shared.receive()
        self._step()  # raises here if the sampler does
        return self._shared.unpack(*answer)

    def _step(self) -> None:
        if self._steps:
            next(self._sampler_iter, None)
