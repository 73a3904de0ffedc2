"""Effects in their order: one rank acts, every rank gets the outcome, through the store.

The n-th effect of a rank is the n-th of every rank, checked by its site. Nothing but JSON and
plain bytes travels, and a rank that skips a call cannot deadlock the others in a collective.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Store

from autoddp.errors import Disagreement
from autoddp.outside.outcome import Outcome

KEPT = 256  # effects that stay in the store for ranks that come later
PART = 1 << 20  # bytes that travel under one key


class Ledger:
    """What ranks did to the outside world, in order; a part of `Group`."""

    rank: int
    size: int
    store: Store

    def __init__(self) -> None:
        self._effects = 0
        self._extra: dict[int, list[str]] = {}  # further keys of an effect, to be deleted with it

    def effect(self, site: str, act: Callable[[], Any], *, meet: bool = False, by: int = 0) -> Any:
        """Rank `by` does `act` once; every rank gets its result, or raises what it raised.

        Args:
            site: What is done, and the user's line; the same on all ranks.
            act: Returns something that JSON can carry.
            meet: Act only when every rank has come here: for an act that changes what slower
                ranks may still be reading.
            by: The rank that acts.

        Raises:
            Disagreement: This rank and `by` are at different places.
        """
        number = self._next()
        if self.rank == by:
            return self._lead(number, site, act, meet)
        return self._follow(number, site, by)

    def hand(self, site: str, act: Callable[[], bytes]) -> bytes:
        """The bytes that `act` returns on rank 0, on every rank."""
        number, kept = self._effects, b""

        def publish() -> int:
            nonlocal kept
            kept = act()
            keys = self._parts(number, -(-len(kept) // PART))
            for at, key in enumerate(keys):
                part: Any = kept[at * PART : (at + 1) * PART]  # bytes; its stub knows text only
                self.store.set(key, part)
            return len(keys)

        count = self.effect(site, publish)
        if self.rank == 0:
            return kept
        return b"".join(self.store.get(key) for key in self._parts(number, count))

    def publish(self, key: str, outcome: Outcome) -> None:
        """Say what became of something outside the order (a file's end)."""
        self.store.set(key, json.dumps(outcome.to_data()))

    def published(self, key: str) -> Any:
        """Wait for what another rank says under `key`; its value, or what it raised."""
        return Outcome.from_data(json.loads(self.store.get(key))).unwrap()

    def _lead(self, number: int, site: str, act: Callable[[], Any], meet: bool) -> Any:
        key = f"e{number}"
        if meet:
            self.store.set(key, json.dumps([site, None]))
            arrivals = [f"{key}/at/{rank}" for rank in range(self.size) if rank != self.rank]
            self.store.wait(arrivals)
            key += "/done"
            self._extra.setdefault(number, []).extend([*arrivals, key])
        outcome = Outcome.of(act)  # an interrupt too: nobody shall wait for what will not come
        self.store.set(key, json.dumps([site, outcome.to_data()]))
        return outcome.unwrap()

    def _follow(self, number: int, site: str, by: int) -> Any:
        key = f"e{number}"
        theirs, data = json.loads(self.store.get(key))
        if theirs != site:
            raise Disagreement(
                f"rank {self.rank} is at «{site}» where rank {by} is at «{theirs}» (side effect "
                f"{number}); a decision in the script differs between ranks"
            )
        if data is None:
            self.store.set(f"{key}/at/{self.rank}", "")
            _, data = json.loads(self.store.get(f"{key}/done"))
        return Outcome.from_data(data).unwrap()

    def _parts(self, number: int, count: int) -> list[str]:
        keys = [f"e{number}/part/{at}" for at in range(count)]
        if self.rank == 0:
            self._extra.setdefault(number, []).extend(keys)
        return keys

    def _next(self) -> int:
        """Count an effect; now and then clear away what every rank has read."""
        number, self._effects = self._effects, self._effects + 1
        if number and number % KEPT == 0:
            self.store.set(f"at/{self.rank}/{number}", "")
            if self.rank == 0:
                self._clear(number - KEPT)
        return number

    def _clear(self, before: int) -> None:
        """Delete the effects that nobody can still want: all ranks are past `before`."""
        if before <= 0:
            return
        keys = [f"at/{rank}/{before}" for rank in range(self.size)]
        self.store.wait(keys)
        for number in range(before - KEPT, before):
            keys += [f"e{number}", *self._extra.pop(number, [])]
        for key in keys:
            self.store.delete_key(key)
