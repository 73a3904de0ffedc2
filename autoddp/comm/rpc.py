"""Calls between ranks, in their order: one rank acts, and every rank gets the outcome.

The n-th call of a rank is the n-th of every rank, checked by its site. Nothing but JSON and plain
bytes travels, and a rank that skips a call cannot deadlock the others in a collective.

Rank 0 says every outcome. Where it has to wait, since all are to be here or another rank acts, it
announces the call, and each rank answers once it has come there; the one that acts, with the
outcome. So no rank is past a call that rank 0 has not begun.

Rank 0 may be many calls ahead of a rank that has not come to them; a full buffer then holds it
back. That cannot deadlock: the slow rank stands before a call that rank 0 is past, so whatever
collective it waits in, rank 0 has started or left, and needs no more of rank 0's main thread. Nor
can two buffers hold back both ends of a line: a rank answers when it has read all that was said,
and then rank 0 says nothing more before it has read the answers. An act may take any time, as in
one process: who waits for it has no deadline, and the thread that watches sees where nobody acts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from torch.distributed import Store

from autoddp.comm.channel import Channel
from autoddp.comm.collective_check import LEFT, WAITS
from autoddp.comm.context import Context
from autoddp.comm.outcome import Outcome
from autoddp.comm.position import ACTING, EFFECT, MEETING, Position
from autoddp.comm.signal_sync import SignalSync
from autoddp.errors import Disagreement, RankEnded

# the first byte of a message; then come who acts, the site, and what an outcome is made of
OUTCOME, ANNOUNCED, HERE = b"=", b"?", b"@"


class When(Enum):
    """The time at which the act of a call begins."""

    NOW = "as soon as the rank that acts has come"
    ALL_HERE = "once every rank has come: slower ones may be reading what the act changes"


class Rpc:
    """The ranks' calls in their order, most of them effects on the world; a part of `Group`."""

    rank: int
    size: int
    store: Store
    channel: Channel

    def __init__(self) -> None:
        self.context = Context()
        self.signal_sync = SignalSync(self.rank, self.channel.orders, self.context)
        self.position = Position()
        self._calls = 0

    def call(self, site: str, act: Callable[[], Any], *, by: int = 0, when: When = When.NOW) -> Any:
        """Have rank `by` do `act` once; return its result, or raise what it raised, on every rank.

        Args:
            site: The kind of call, and the user's line; the same on all ranks.
            act: Returns bytes, or something that JSON can carry.
            by: The rank that acts.
            when: The time to act; `ALL_HERE` is for rank 0 alone.

        Raises:
            Disagreement: This rank and rank 0 are at different places.
        """
        place, outcome = f"{by} {site}".encode(), None
        if when is When.ALL_HERE and self.rank == 0:
            self._meet(place)
        if self.rank == by:
            outcome = self._outcome(place, act)
        said = HERE + place if outcome is None else OUTCOME + place + b"\0" + outcome.to_bytes()
        if self.rank:
            said = self._follow(place, said)
        else:
            if by:
                said = self._meet(place, EFFECT)[by]
            self.signal_sync.enter()  # as late as may be: a script may have signalled itself
            self._say(said)
        self._calls += 1
        self.signal_sync.leave()
        if outcome is None:
            outcome = Outcome.from_bytes(said.partition(b"\0")[2])
        return outcome.unwrap()

    @property
    def passed(self) -> int:
        """Return how many calls this rank has come through."""
        return self._calls

    def _outcome(self, place: bytes, act: Callable[[], Any]) -> Outcome:
        acting, self.signal_sync.acting = self.signal_sync.acting, True
        with self.position.at(ACTING, self._words(place)):
            # an interrupt too: nobody shall wait for what will not come
            outcome = Outcome.of(act)
        self.signal_sync.acting = acting
        return outcome

    def _words(self, place: bytes) -> str:
        """Return the call's number and site, which all ranks at this call say alike."""
        return f"{self._calls} {_site(place)}"

    def _parted(self, place: bytes, other: int, theirs: bytes) -> Disagreement:
        return Disagreement(
            f"rank {self.rank} is at «{_site(place)}» where rank {other} is at «{_site(theirs)}» "
            f"(side effect {self._calls}); a decision in the script differs between ranks"
        )

    # ---- rank 0

    def _say(self, message: bytes) -> None:
        with self.signal_sync.quiet():
            self.channel.effects.say(message)

    def _meet(self, place: bytes, kind: str = MEETING) -> dict[int, bytes]:
        """Announce the call, and return what each rank answers, once it is there."""
        self._say(ANNOUNCED + place)
        found = {}
        with self.position.at(kind, self._words(place)), self.signal_sync.quiet():
            for rank, line in self.channel.effects.items():
                try:
                    found[rank] = line.read()
                except RankEnded:
                    self.store.set(f"{WAITS}/0", "")
                    time.sleep(LEFT)  # its launcher says why, and ends this rank meanwhile
                    raise
                if _place(found[rank]) != place:
                    raise self._parted(place, rank, _place(found[rank]))
        return found

    # ---- the others

    def _follow(self, place: bytes, answer: bytes) -> bytes:
        """Return what becomes of the call at `place`; answer if rank 0 announces it."""
        lines = self.channel.effects
        with self.position.at(EFFECT, self._words(place)), self.signal_sync.quiet():
            while True:
                message = lines.hear()
                theirs = _place(message)
                if theirs != place:
                    lines.say(HERE + place)
                    raise self._parted(place, 0, theirs)
                if message[:1] == OUTCOME:
                    return message
                lines.say(answer)


def _place(message: bytes) -> bytes:
    return message[1:].partition(b"\0")[0]


def _site(place: bytes) -> str:
    return place.partition(b" ")[2].decode()
