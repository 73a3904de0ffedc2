"""Loaders that the first rank of a node runs for all of its ranks.

Without workers, every rank runs the script's iterator and sampler, and only the first rank fetches.
With workers, which only the first rank has, the others step their own sampler as often as it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, default_collate

from autoddp.errors import Disagreement
from autoddp.training.loading.generators import Generators
from autoddp.training.loading.link import NodeLink, connect
from autoddp.training.loading.message import NotTransferable
from autoddp.training.loading.plan import EACH, Plan
from autoddp.training.loading.shared_pass import LOAD_IT, SharedPass
from autoddp.training.loading.watch import OWN, DrawWatch

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class Sharing:
    """The shared loaders of one rank; ranks connect at the first of them."""

    def __init__(self, run: Run, report: Callable[[Plan], object]) -> None:
        self.run, self.report = run, report  # called with a plan in which every rank loads
        self.link: NodeLink | None = None
        self._begun: SharedPass | None = None  # of the iterator that is being made

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
        shared = self._begun = self.begin(loader, plan)
        try:
            inner = make()
        finally:
            self._begun = None
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
        inner._dataset_fetcher = SharedFetch(shared, inner._dataset_fetcher, plan, self.report)

    def follower(self, loader: Any, make: Callable[[], Any]) -> Any:
        """Make the iterator of a loader; on ranks without workers one that follows the first."""
        shared = self._begun
        here = self.run.view.context.on_script_thread() and loader.num_workers
        if shared is None or shared.is_first or not here:
            return make()
        return FollowerIterator(loader, lambda: self._begun)


class SharedFetch:
    """The fetch of a loader without workers: on the first rank its own, else by the link."""

    def __init__(
        self, shared: SharedPass, real: Any, plan: Plan, report: Callable[[Plan], object]
    ) -> None:
        self.shared, self.real, self.plan, self.report = shared, real, plan, report
        self.once = isinstance(real.dataset, IterableDataset)  # it can only be read from the start
        self.own = [] if self.once else plan.generators
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
        self.report(Plan(self.plan.where, EACH, reason))
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
        batch = self._shared.unpack(*answer)
        return pin_memory(batch, self._pin_memory_device) if self._pin_memory else batch

    def _step(self) -> None:
        if self._steps:
            next(self._sampler_iter, None)
