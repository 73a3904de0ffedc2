"""The check of collectives: ranks compare what they enter, and reduce small tensors meanwhile.

A collective that two ranks enter at different places hangs, crashes in the backend, or, where
shapes happen to agree, returns a sum of what does not belong together. So each rank stamps what it
enters, rank 0 compares the stamps, see `InOrder`, and nobody goes on before it has. Where an
accelerator waits, not the script, and in a backward, ranks only note the stamp: how many there
were, a checksum of them, and the newest one come with the next exchange.

A small tensor travels with its stamp, is reduced or gathered on rank 0 and comes back: one message
each way, which is faster than a ring of TCP connections. Ranks that share memory exchange stamps
and small tensors there, and each compares them itself; if they differ, all go on by messages, so
that rank 0 finds out which rank is where.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist
from torch import Tensor

from autoddp import torch_internals
from autoddp.comm.in_order import InOrder, await_end, differ, without_file
from autoddp.comm.signal_sync import SignalSync
from autoddp.report import users_line

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.group import Group
    from autoddp.comm.line import Lines
    from autoddp.comm.node_memory import NodeMemory

Merge = Callable[[list[bytes]], bytes]


class CollectiveCheck(InOrder):
    """One rank's end of the check.

    Attributes:
        count: The number of collectives, which is the same on all ranks.
    """

    def __init__(self, rank: int, lines: Lines, store: Store, signals: SignalSync) -> None:
        super().__init__(rank, lines, store, signals)
        self.memory: NodeMemory | None = None  # of all ranks, if they are on one node
        self.count = self._checksum = 0  # of all stamps
        self._noted = ""  # the newest stamp, if it was only noted
        self._lock = threading.Lock()  # two threads of the script's may read a batch at once

    def words(self, what: str, x: Tensor) -> str:
        """Describe the collective that this rank is about to enter, with the user's line."""
        dtype = str(x.dtype).removeprefix("torch.")
        device = "" if x.is_cpu else f" on {x.device.type}"
        return f"{what} of {dtype}{list(x.shape)}{device} at {users_line(3)}"

    def note(self, stamp: str) -> None:
        """Note the stamp of what this rank enters; nobody waits, and nothing is sent."""
        self._noted = stamp
        self._checksum = zlib.crc32(without_file(stamp.encode()), self._checksum)
        self.count += 1

    def exchange(self, stamp: str, body: bytes, merge: Merge) -> bytes:
        """Return what `merge` makes of all ranks' bodies, once all ranks are at this stamp.

        Raises:
            Disagreement: Two ranks are at different places; raised on all that wait here.
            RankEnded: A rank has ended.
        """
        with self._lock, self.signals.quiet():
            place, past = stamp.encode(), b"%d %d" % (self.count, self._checksum)
            noted = self._noted.encode() or place
            self.note(stamp)
            self._noted = ""
            order = b"" if torch_internals.in_backward() else self.signals.order()
            found = self._by_memory(place, past, order, body)
            if found is not None:
                self.signals.ordered(found[0][2])
                return merge([body for *_, body in found])
            if self.rank:
                return self.receive(place, b"\0".join((past, noted, body)))
            bodies = [body]
            for rank, data in self.gather(place).items():
                theirs, last, other = data.split(b"\0", 2)
                if theirs != past and not torch_internals.in_backward():  # other threads go on
                    self._apart(rank, last, noted, place)
                bodies.append(other)
            merged = merge(bodies)
            self.send(place, order, merged)
            return merged

    def _by_memory(self, *mine: bytes) -> list[list[bytes]] | None:
        """Return all ranks' place, past, order and body; None, on all, if the first two differ."""
        if self.memory is None:
            return None
        try:
            messages = self.memory.exchange(b"\0".join(mine))
        except dist.DistNetworkError:
            return None
        found = [message.split(b"\0", 3) for message in messages]
        alike = all(past == found[0][1] for _, past, *_ in found)
        return found if alike and not any(differ(each[0], found[0][0]) for each in found) else None

    def _apart(self, rank: int, theirs: bytes, own: bytes, place: bytes) -> NoReturn:
        """Raise that a rank has noted other stamps than rank 0, the newest of which are given."""
        if not differ(theirs, own):
            calls, _, where = place.partition(b" ")
            theirs = calls + b" another collective, some time before " + where
        self.disagree(rank, theirs, own)

    def newest(self) -> str:
        """Return the newest noted stamp in words; if there is none, words for any computation."""
        return self._noted.partition(" ")[2] or "what its device computes"


class Together:
    """A place of the program at which all ranks wait for each other, as a context manager.

    A step has several of them: a generator would take longer.

    Attributes:
        stamp: The place in words, which all ranks compare.
    """

    __slots__ = ("_at", "_group", "_is_point", "_x", "stamp")

    def __init__(self, group: Group, what: str, x: Tensor, kind: str) -> None:
        words = group.collective_check.words(what, x)
        self._group, self._x, self.stamp = group, x, f"{group.passed} {words}"
        self._at = group.position.at(kind, words)

    def __enter__(self) -> Together:
        self._is_point = self._group.signal_sync.here() and not torch_internals.in_backward()
        self._at.__enter__()
        return self

    def exchange(self, body: bytes, merge: Merge) -> bytes:
        """Return what `merge` makes of all ranks' bodies, once all are here."""
        return self._group.collective_check.exchange(self.stamp, body, merge)

    def agree(self) -> None:
        """Check that all ranks are about to do the same, or note it where only a device waits."""
        if self._group.native and self._x.device.type != "cpu":
            self._group.collective_check.note(self.stamp)
        else:
            self.exchange(b"", lambda _: b"")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        group = self._group
        try:
            # torch's own message names a rank that did nothing wrong
            if isinstance(error, RuntimeError) and (
                isinstance(error, dist.DistError) or "/gloo/transport/" in str(error)
            ):
                await_end(group.store, group.rank)
        finally:
            self._at.__exit__()
        if error is None and self._is_point:
            group.signal_sync.leave()
