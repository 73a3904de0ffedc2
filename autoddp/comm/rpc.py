"""Side effects in their order: one rank acts, every rank gets the outcome.

The n-th effect of a rank is the n-th of every rank, checked by its site. What rank 0 does travels
by the channel; what another rank does (the first of its node: a download) by the store. Nothing but
JSON and plain bytes travels, and a rank that skips a call cannot deadlock the others in a
collective.

Rank 0 may be many effects ahead of a rank that has not come to them; a full buffer then holds it
back. That cannot deadlock: the slow rank stands before an effect that rank 0 is past, so whatever
collective it waits in, rank 0 has started or left, and needs no more of rank 0's main thread. And
the deadline bounds it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from torch.distributed import Store

from autoddp.comm.channel import Channel
from autoddp.comm.collective_check import LEFT, WAITS
from autoddp.comm.context import Context
from autoddp.comm.outcome import Outcome
from autoddp.comm.position import ACTING, EFFECT, MEETING, Position
from autoddp.comm.signal_sync import SignalSync
from autoddp.errors import Disagreement, RankEnded

OUTCOME, ANNOUNCED, TOLD = b"=", b"?", b"#"  # the first byte of what rank 0 says
HERE = b""  # what another rank answers to an announcement; its site, if it is elsewhere


class Rpc:
    """The ranks' side effects on the outside world, in order; a part of `Group`."""

    rank: int
    size: int
    store: Store
    channel: Channel

    def __init__(self) -> None:
        self.context = Context()
        self.points = SignalSync(self.rank, self.channel.orders, self.context)
        self.position = Position()
        self._effects = 0  # rank 0's
        self._others = 0  # those of all other ranks
        self._early: deque[bytes] = deque()  # messages that came before they were asked for
        self._told: dict[str, bytes] = {}
        # a file may be closed by any thread, and by the garbage collector in the midst of a send
        self._speaking = threading.RLock()

    def effect(self, site: str, act: Callable[[], Any], *, meet: bool = False, by: int = 0) -> Any:
        """Have rank `by` do `act` once; return its result, or raise what it raised, on every rank.

        Args:
            site: The kind of effect, and the user's line; the same on all ranks.
            act: Returns something that JSON can carry.
            meet: Act only when every rank has come here: for an act that changes what slower
                ranks may still be reading. Rank 0's alone.
            by: The rank that acts.

        Raises:
            Disagreement: This rank and `by` are at different places.
        """
        if by:
            return self._elsewhere(site, act, by)
        if self.rank == 0:
            if meet:
                self._meet(site)
            acting, self.points.acting = self.points.acting, True
            with self.position.at(ACTING, self._words(site)):
                # an interrupt too: nobody shall wait for what will not come
                outcome = Outcome.of(act)
            self.points.acting = acting
            self.points.enter()  # as late as may be: a script may have signalled itself
            self._say(
                b"%b%b\0%b" % (OUTCOME, site.encode(), json.dumps(outcome.to_data()).encode())
            )
            self._effects += 1
            self.points.leave()
            return outcome.unwrap()
        with self.position.at(EFFECT, self._words(site)):
            data = self._follow(site.encode())
        self._effects += 1
        self.points.leave()
        return Outcome.from_data(json.loads(data)).unwrap()

    @property
    def passed(self) -> int:
        """Return how many effects of rank 0 this rank has come through."""
        return self._effects

    def hand(self, site: str, act: Callable[[], bytes]) -> bytes:
        """Return on every rank the bytes that `act` returns on rank 0."""
        body = b""

        def make() -> None:
            nonlocal body
            body = act()

        self.effect(site, make)
        if self.rank:
            return self._next()[1:]
        self._say(OUTCOME + body)
        return body

    def publish(self, key: str, outcome: Outcome) -> None:
        """Tell from rank 0 what became of something outside the order (a file's end)."""
        self._say(b"%b%b\0%b" % (TOLD, key.encode(), json.dumps(outcome.to_data()).encode()))

    def published(self, key: str) -> Any:
        """Wait for what rank 0 says under `key`; return its value, or raise what it raised."""
        while key not in self._told:
            with self.points.quiet():
                message = self.channel.effects[0].read()
            if not self._is_told(message):
                self._early.append(message)
        return Outcome.from_data(json.loads(self._told.pop(key))).unwrap()

    # ---- rank 0

    def _say(self, message: bytes) -> None:
        with self._speaking, self.points.quiet():
            for line in self.channel.effects.values():
                line.send(message)

    def _meet(self, site: str) -> None:
        """Wait on rank 0 until every rank is at `site`."""
        self._say(ANNOUNCED + site.encode() + b"\0")
        for rank, line in self.channel.effects.items():
            try:
                with self.points.quiet(), self.position.at(MEETING, self._words(site)):
                    answer = line.read()
            except RankEnded:
                self.store.set(f"{WAITS}/0", "")
                time.sleep(LEFT)  # its launcher says why, and ends this rank meanwhile
                raise
            if answer != HERE:
                raise Disagreement(_parted(0, site, rank, answer.decode(), self._effects))

    def _words(self, site: str) -> str:
        """Return the effect's number and site, which all ranks at this effect say alike."""
        return f"{self._effects} {site}"

    # ---- the others

    def _follow(self, site: bytes) -> bytes:
        """Wait for what rank 0 says of the effect at `site`, and return it."""
        while True:
            with self.points.quiet():
                message = self._next()
            theirs, _, data = message[1:].partition(b"\0")
            if theirs != site:
                self.channel.effects[0].send(site)
                raise Disagreement(
                    _parted(self.rank, site.decode(), 0, theirs.decode(), self._effects)
                )
            if message[:1] == OUTCOME:
                return data
            self.channel.effects[0].send(HERE)

    def _next(self) -> bytes:
        """Take the next message in the order of effects."""
        if self._early:
            return self._early.popleft()
        while True:
            message = self.channel.effects[0].read()
            if not self._is_told(message):
                return message

    def _is_told(self, message: bytes) -> bool:
        if message[:1] != TOLD:
            return False
        key, _, data = message[1:].partition(b"\0")
        self._told[key.decode()] = data
        return True

    # ---- what another rank than 0 does

    def _elsewhere(self, site: str, act: Callable[[], Any], by: int) -> Any:
        key, self._others = f"e{self._others}", self._others + 1
        if self.rank == by:
            with self.position.at(ACTING, f"{key} {site}"):
                outcome = Outcome.of(act)
            self.store.set(key, json.dumps([site, outcome.to_data()]))
            return outcome.unwrap()
        with self.position.at(EFFECT, f"{key} {site}"):
            theirs, data = json.loads(self.store.get(key))
        if self.store.add(f"{key}/read", 1) == self.size - 1:  # the last one tidies up
            self.store.delete_key(key)
            self.store.delete_key(f"{key}/read")
        if theirs != site:
            raise Disagreement(_parted(self.rank, site, by, theirs, self._others - 1))
        return Outcome.from_data(data).unwrap()


def _parted(rank: int, site: str, other: int, theirs: str, number: int) -> str:
    return (
        f"rank {rank} is at «{site}» where rank {other} is at «{theirs}» (side effect {number}); "
        "a decision in the script differs between ranks"
    )
