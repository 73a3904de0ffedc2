"""The view's state on one rank: the group, where the script is, and what is still to be summed."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from autoddp.report import Report, users_line
from autoddp.view.cuts import Cuts, even_sizes
from autoddp.view.order import Order
from autoddp.view.partials import PendingSums
from autoddp.view.places import Place
from autoddp.view.work import TRIAL, Work

if TYPE_CHECKING:
    from autoddp.comm.group import Group

MET = 256  # modules whose first calls are remembered


@dataclass
class Region:
    """A split call: which rows run here, whether it draws, where, and how often it has drawn."""

    cuts: Cuts
    at: int
    draws: bool
    places: tuple[Place, ...] = ()
    drawn: int = 0


class View:
    """The state that `Rows`, the rules and the features of the view share on one rank.

    Attributes:
        region: The split call that runs at present, if any.
        noted: Called in a trial with what BatchNorm is given: statistics over all ranks are those
            of one process only where each rank gives it its rows, and all of them.
        holds: Called in a trial with a tensor: whether it came of the rows.
    """

    def __init__(self, group: Group, draws: str = "auto", report: Report | None = None) -> None:
        self.group, self.draws = group, draws
        self.report = report or Report()
        self.context = group.context
        self.noted: Callable[[Tensor], object] = id
        self.holds: Callable[[Tensor], bool] = lambda _: False
        self.region: Region | None = None
        self.pending = PendingSums(group)
        self.work = Work(group)
        self.order = Order()
        # the latest modules that were called; dead ones stay: each rank frees its own at any time
        self.met: deque[weakref.ref[nn.Module]] = deque(maxlen=MET)
        # the states of this rank's own streams of draws, by the device, or by the generator that
        # the script names
        self.streams: dict[torch.device | torch.Generator, Tensor] = {}
        self._cuts: dict[tuple[tuple[int, ...], int], Cuts] = {}
        self._even: dict[int, Cuts] = {}

    def cut(self, total: int) -> Cuts:
        """Return the even cuts of `total` rows over the ranks."""
        found = self._even.get(total)
        if found is None:
            found = self._even[total] = self.cuts(even_sizes(total, self.group.size))
        return found

    def cuts(self, sizes: tuple[int, ...], turns: int = 1) -> Cuts:
        """Return the one `Cuts` of these sizes in so many turns."""
        found = self._cuts.get((sizes, turns))
        if found is None:
            found = self._cuts[sizes, turns] = Cuts(self, sizes, turns)
        return found

    def gathered(self, name: str) -> None:
        """Note for the report that the operation `name` needed the whole."""
        self.report.add("gather", users_line(2), name)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Run user code in here that one process would not have run: no effects, no prints."""
        with ExitStack() as stack:
            stack.enter_context(self.context.trial())
            stack.callback(self.work.turn, self.work.turn(TRIAL))
            stack.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
            # weights cast in one run would be strangers to the next
            torch.set_autocast_cache_enabled(False)
            yield
