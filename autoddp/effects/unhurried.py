"""Acts of rank 0 for all ranks, however long they take, in the order of the script or a thread.

The waits of `Group.call` end some day, since a rank that is that late has gone astray. A program
may run for days: here all ranks agree first that they are at the same place, and then wait for as
long as it takes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from autoddp.comm.outcome import Outcome
from autoddp.comm.position import ACTING, EFFECT
from autoddp.effects.engine import Effects, Mode
from autoddp.effects.ownership import users_call
from autoddp.errors import Disagreement, OutOfReach
from autoddp.torch_internals import another_connection

PART = 1 << 20  # bytes that travel under one key
KEPT = 256  # answers; older ones are deleted when all ranks have them
LOOK = timedelta(seconds=0.5)  # how long a signal may have to wait for its handler
TICK = 0.005
PATIENCE = 1800.0  # seconds until a thread of rank 0 must have come to where another rank's is


class Unhurried:
    """The channel on which rank 0 acts, and the others are told what became of it."""

    def __init__(self, effects: Effects, who: str) -> None:
        self.effects, self._who = effects, who
        self._turn = 0
        # this process, and the store, or in a process forked from the rank a copy of it
        self._clone = os.getpid(), effects.group.store
        self._keys: list[str] = []
        self._within = threading.local()  # `effects.own` is the main thread's

    def mode(self) -> Mode:
        """Return the mode of `effects`, or PASS_THROUGH inside what rank 0 does for all.

        The latter holds in threads and worker processes, too; else a forked child is UNSYNCED.
        """
        if getattr(self._within, "acts", False):
            return Mode.PASS_THROUGH
        return Mode.UNSYNCED if self.effects.in_forked_child() else self.effects.mode()

    def users(self, through: tuple[str, ...] = ()) -> Mode:
        """Return the mode, but PASS_THROUGH where a library acts for itself.

        Files in `through` count as no library.
        """
        mode = self.mode()
        return mode if mode is Mode.PASS_THROUGH or users_call(2, through) else Mode.PASS_THROUGH

    def tell(
        self,
        mode: Mode,
        what: str,
        name: str,
        act: Callable[[], Any],
        *,
        meet: bool = False,
        wait: bool = True,
    ) -> Any:
        """Return what `act` returned on rank 0, which JSON can carry; or raise what it raised.

        Args:
            mode: The answer of `mode`, or a stricter one.
            what: A description for messages.
            name: The name by which threads and worker processes of the ranks find each other; calls
                are counted.
            act: The act, which only rank 0 calls.
            meet: Whether to act only when all ranks are here.
            wait: Whether a thread may wait for ever, not only `PATIENCE` for rank 0's to come.

        Raises:
            OutOfReach: Rank 0 cannot be asked here.
        """
        self.check(mode, what)
        if mode is Mode.PASS_THROUGH:
            return act()
        if mode is Mode.SYNCED:
            with self.effects.context.internal():
                return self._in_order(what, act, meet)
        name = f"{self._who}/{name}"
        turn = self._store().add(f"{name}/by {self.effects.rank}", 1)
        if self.effects.rank == 0:
            return self._do(f"{name}/{turn}", act)
        return self._look(what, name, turn, None if wait else time.monotonic() + PATIENCE)

    def check(self, mode: Mode, what: str) -> None:
        """Raise an error where rank 0 cannot be asked.

        Raises:
            OutOfReach: It is so in a trial, and on the other ranks where each is on its own.
        """
        if mode is Mode.SUPPRESSED:
            raise OutOfReach(
                f"{what} in a trial: it would have been done once more than the script does it"
            )
        if mode is Mode.PASS_THROUGH and self.effects.rank:
            raise OutOfReach(
                f"{what}: the program is rank 0's, which cannot be asked here (in a data set's "
                "fetch, or in a process of this rank's own); do it outside of it"
            )

    def _in_order(self, what: str, act: Callable[[], Any], meet: bool) -> Any:
        turn, self._turn = self._turn, self._turn + 1
        sweep = turn > 0 and turn % KEPT == 0  # at a meeting: then all have what was told before
        step = self.effects.do_on_rank0 if meet or sweep else self.effects.ask_rank0
        step(what, self._sweep if sweep else _nothing)
        key, position = f"{self._who}/{turn}", self.effects.group.position
        if self.effects.rank == 0:
            self._keys.append(key)
            with position.at(ACTING, f"{key} {what}"):
                return self._do(key, act)
        store = self._store()
        with position.at(EFFECT, f"{key} {what}"):
            while True:
                try:
                    store.wait([key], LOOK)
                except dist.DistStoreError:
                    continue
                return self._read(key)

    def _do(self, key: str, act: Callable[[], Any]) -> Any:
        before, self._within.acts = getattr(self._within, "acts", False), True
        try:
            outcome = Outcome.of(act)
        finally:
            self._within.acts = before
        store = self._store()
        data = json.dumps(outcome.to_data(), ensure_ascii=False).encode("utf-8", "surrogatepass")
        parts: list[Any] = [data[at : at + PART] for at in range(0, len(data), PART)]
        for at, part in enumerate(parts[1:], 1):
            store.set(f"{key}/{at}", part)
        first: Any = b"%d\n" % len(parts) + parts[0]
        store.set(key, first)
        self._keys += [f"{key}/{at}" for at in range(1, len(parts))]
        return outcome.unwrap()

    def _read(self, key: str) -> Any:
        store = self._store()
        count, _, first = store.get(key).partition(b"\n")
        data = first + b"".join(store.get(f"{key}/{at}") for at in range(1, int(count)))
        return Outcome.from_data(json.loads(data.decode("utf-8", "surrogatepass"))).unwrap()

    def _look(self, what: str, name: str, turn: int, deadline: float | None) -> Any:
        """Wait in a thread for rank 0's answer, without a blocking call.

        The thread that runs the script has the store's one connection.

        Raises:
            Disagreement: Rank 0 has not come before `deadline`; once there, it may take its time.
        """
        store, key = self._store(), f"{name}/{turn}"
        while not store.check([key]):
            late = deadline is not None and time.monotonic() > deadline
            if late and store.add(f"{name}/by 0", 0) >= turn:
                deadline, late = None, False
            if self.effects.context.over or late:
                raise Disagreement(
                    f"rank {self.effects.rank}: no thread of rank 0's came to this {what}"
                )
            time.sleep(TICK)
        return self._read(key)

    def _store(self) -> Any:
        """Return the job's store; in a forked process, by a connection that is not the parent's."""
        if self._clone[0] != os.getpid():
            self._clone = os.getpid(), another_connection(self.effects.group.store)
        return self._clone[1]

    def _sweep(self) -> None:
        keys, self._keys = self._keys, []
        for key in keys:
            self.effects.group.store.delete_key(key)


def _nothing() -> None:
    """Do nothing: all that counts is that ranks are at the same place."""


def carried(value: Any) -> Any:
    """Return `value`, which may be bytes, in a form that JSON can carry."""
    return [value.decode("latin-1")] if isinstance(value, bytes) else value


def taken(value: Any) -> Any:
    """Return the value that was given to `carried`."""
    return value[0].encode("latin-1") if isinstance(value, list) else value
