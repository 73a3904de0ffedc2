"""Calls between ranks, in their order: one rank acts, and every rank gets the outcome.

The n-th call of a rank is the n-th of every rank, checked by its site (see `InOrder`), and rank 0
sends every outcome. Where all ranks are to come first, or another rank acts, rank 0 announces the
call, and each of them reports to rank 0 that it is here, the one that acts with the outcome. So no
rank is past a call that rank 0 has not begun, and a rank that is elsewhere finds out.

Rank 0 may be many calls ahead of another rank; a full buffer then blocks it. That cannot deadlock:
the slow rank is before a call that rank 0 has passed, so whatever collective it waits in, rank 0
has started or left, and needs no more of rank 0's main thread. Nor can both ends of a connection
block each other: a rank that writes at a call has read all that came before, and rank 0 is not past
a call at which it reads that. An act may take any time, as in one process: who waits for it has no
deadline, and the thread that watches sees where nobody acts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed import Store

from autoddp.comm.collective_check import CollectiveCheck
from autoddp.comm.context import Code, Context
from autoddp.comm.control_plane import Channel
from autoddp.comm.in_order import WHERE, InOrder
from autoddp.comm.outcome import Outcome
from autoddp.comm.position import ACTING, WAITING, Position
from autoddp.comm.signal_sync import SignalSync


class Rpc:
    """The ranks' calls in their order, most of them effects on the world; a part of `Group`.

    Attributes:
        passed: The number of calls that this rank has completed.
    """

    def __init__(self, rank: int, size: int, store: Store, channel: Channel) -> None:
        self.rank, self.size, self.store, self.channel = rank, size, store, channel
        self.context, self.position, self.passed = Context(), Position(), 0
        self.signal_sync = SignalSync(rank, channel.orders, channel.calls, self.context)
        self._calls = InOrder(rank, channel.calls, store, self.signal_sync)
        self.collective_check = CollectiveCheck(rank, channel.collectives, store, self.signal_sync)

    def call(
        self, site: str, act: Callable[[], Any], *, by: int = 0, all_here: bool = False
    ) -> Any:
        """Have rank `by` do `act` once; return its result, or raise what it raised, on every rank.

        Args:
            site: The kind of call, and the user's line; the same on all ranks.
            act: Returns what can be pickled.
            by: The rank that acts.
            all_here: Whether rank 0 acts once every rank is there, as slower ones may be reading
                what the act changes; else as soon as it is there itself.

        Raises:
            Disagreement: This rank and rank 0 are at different places.
        """
        place, all_come = f"{self.passed} {site}", by != 0 or all_here
        outcome = (self._follow if self.rank else self._lead)(place, act, by, all_come)
        self.passed += 1
        self.signal_sync.leave()
        return outcome.unwrap()

    def _lead(self, place: str, act: Callable[[], Any], by: int, all_come: bool) -> Outcome:
        calls, here, theirs = self._calls, place.encode(), {}
        if all_come:
            with self.position.at(WAITING, place), self.signal_sync.quiet():
                calls.send(here, kind=WHERE)  # a rank that sends nothing may be elsewhere
                theirs = calls.gather(here)
        outcome = Outcome.from_bytes(theirs[by]) if by else self._outcome(place, act)
        data = theirs[by] if by else outcome.to_bytes()
        with self.signal_sync.quiet():
            # as late as possible: the script may have sent itself a signal
            calls.send(here, self.signal_sync.order(), data)
        return outcome

    def _follow(self, place: str, act: Callable[[], Any], by: int, all_come: bool) -> Outcome:
        own = self._outcome(place, act) if self.rank == by else None
        sent = own.to_bytes() if own is not None else b"" if all_come else None
        with self.position.at(WAITING, place), self.signal_sync.quiet():
            data = self._calls.receive(place.encode(), sent)
        return Outcome.from_bytes(data) if own is None else own

    def _outcome(self, place: str, act: Callable[[], Any]) -> Outcome:
        depth = self.context.depth

        def acting() -> Any:
            # A handler runs at once while this is set, so what it raises is the outcome: nobody may
            # wait for what will not come. As `within` does; a clock is read in a few microseconds.
            depth[Code.ACTING] += 1
            try:
                return act()
            finally:
                depth[Code.ACTING] -= 1

        with self.position.at(ACTING, place):
            return Outcome.of(acting)
