"""The state of the global view on one rank: its group, pending sums, cached decisions."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from autoddp.report import Report, users_line
from autoddp.torch_internals import current_node, in_function
from autoddp.view.order import Order
from autoddp.view.pending_sums import PendingSums
from autoddp.view.shard_sizes import ShardSizes, even_sizes
from autoddp.view.work import ELSEWHERE, REPLICATED, SHARDED, WHOLE, Work

if TYPE_CHECKING:
    from autoddp.comm.group import Group

MAX_RECENT = 256


class View:
    """The state that sharded tensors, rules and features share on one rank.

    Attributes:
        batch_statistics: Whether BatchNorm takes its statistics over all ranks.
        decisions: The cached decisions of rules, by the schema of a call.
        layouts: The layouts of results with a single row on some rank, by schema and strides.
        recent_modules: The modules called last; freed ones stay, so that ranks agree.
        tracing: Whether a compiler traces a graph of sharded tensors.
        streams: The states of this rank's own random streams, by device.
        sharded_parameters: Whether parameters of this job are sharded.
        held: The bases whose memory the script may hold and write into without torch seeing it.
        again: The node of the graph for which a backward computes something again; or None.
        undecided: Whether a loop is counted, whose batches may be whole behind that.
        at_call: Is called before each outermost call of a module that may be sharded; or None.
        alike: Whether batches stay whole, and ranks compute the same of them to the last bit.
        ignored: The targets that the latest loss to wait for their number ignores; None before.
        counts: What is counted of the step that runs; None in almost all steps.
    """

    def __init__(
        self,
        group: Group,
        draws: str = "auto",
        report: Report | None = None,
        batch_statistics: bool = True,
    ) -> None:
        self.group, self.draws, self.batch_statistics = group, draws, batch_statistics
        self.report = report or Report()
        self.context = group.context
        self.pending = PendingSums(group)
        self.work = Work(group)
        self.order = Order()
        self.decisions: dict[tuple[Any, ...], Any] = {}
        self.layouts: dict[tuple[Any, ...], Any] = {}
        self.recent_modules: deque[weakref.ref[nn.Module]] = deque(maxlen=MAX_RECENT)
        self.tracing = self.sharded_parameters = False
        self.streams: dict[torch.device, Tensor] = {}
        self.held: weakref.WeakSet[Any] = weakref.WeakSet()
        self.again: Any = None
        self.at_call: Callable[[], None] | None = None
        self.undecided = self.alike = self._replicates = False
        self.counts: Any = None
        self.ignored: int | None = None
        self._sizes: dict[tuple[tuple[int, ...], int], ShardSizes] = {}

    def even_sizes(self, total: int) -> ShardSizes:
        """Return the sizes of `total` rows that are divided evenly over the ranks."""
        return self.shard_sizes(even_sizes(total, self.group.size))

    def shard_sizes(self, per_rank: tuple[int, ...], blocks: int = 1) -> ShardSizes:
        """Return the `ShardSizes` of these rows per rank; equal arguments return one object."""
        sizes = self._sizes.get((per_rank, blocks))
        if sizes is None:
            sizes = self._sizes[per_rank, blocks] = ShardSizes(self, per_rank, blocks)
        return sizes

    def pull(self) -> None:
        """Copy what the script has written into gathered memory: a backward reads saved rows."""
        for base in [*self.held] if self.held else ():
            base.sync()

    @property
    def replicates(self) -> bool:
        """Return whether new batches stay whole, as ranks share no work, see `Placement`."""
        return self._replicates

    @replicates.setter
    def replicates(self, value: bool) -> None:
        """Set it, and `alike`, which a step asks several times."""
        if value != self._replicates:
            self.work.turn(REPLICATED if value else ELSEWHERE)
        self._replicates = value
        self.alike = value and not self.sharded_parameters and self.computes_alike()

    def shard_parameters(self) -> None:
        """Note that parameters of this job are sharded from now on."""
        self.sharded_parameters, self.alike = True, False

    def computes_alike(self) -> bool:
        """Return whether ranks compute the same bits.

        Accelerators sum in no fixed order, and processors of two nodes may differ.
        """
        world = self.group.world
        return not self.group.kind and world.local_world_size == world.world_size

    def in_function(self) -> bool:
        """Return whether autograd's engine runs the backward of an `autograd.Function`."""
        return in_function() and current_node() is not self.again

    def gathered(self, name: str, size: int) -> None:
        """Record that the function `name` gathered a batch of `size` bytes."""
        self.report.add("gather", users_line(2), name, size)
        if self.work.kind is SHARDED:
            self.work.turn(WHOLE)
