"""The protocol by which rank 0 and the others see that they are at the same place of the program.

All ranks run one program, so the n-th message of a rank belongs to the same place as the n-th of
rank 0: after as many calls, of the same kind, and at a line of the same number. The file's name
does not count: code that a library generates may have another one on each rank.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from autoddp.comm.signal_sync import AT_ONCE, SignalSync
from autoddp.errors import Disagreement, RankEnded

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.line import Line, Lines

# the first byte of a message of rank 0, or AT_ONCE
SENT = b"="  # its place, order and data
WHERE = b"?"  # it waits at this place for all others
DISAGREE = b"!"  # ranks are at different places
WAITS = "waits"  # in the store: a rank only waits for its end
LEFT = 10.0  # seconds that a launcher has to end this rank once another one has failed


class InOrder:
    """One rank's end of a sequence of places, which has connections of its own."""

    def __init__(self, rank: int, lines: Lines, store: Store, signals: SignalSync) -> None:
        self.rank, self.lines, self.store, self.signals = rank, lines, store, signals

    def send(self, place: bytes, order: bytes = b"", data: bytes = b"", kind: bytes = SENT) -> None:
        """Send, on rank 0, its order and its data at a place to all others."""
        self.lines.send(b"\0".join((kind + place, order, data)))
        self.signals.ordered(order)

    def gather(self, place: bytes) -> dict[int, bytes]:
        """Return, on rank 0, what each other rank sends at this place, once all are there.

        Raises:
            Disagreement: A rank is at another place.
            RankEnded: A rank has ended.
        """
        found = {}
        for rank, line in self.lines.items():
            theirs, _, found[rank] = self._read(line, place).partition(b"\0")
            if differ(theirs, place):
                self.disagree(rank, theirs, place)
        return found

    def receive(self, place: bytes, own: bytes | None = None) -> bytes:
        """Return, on another rank, rank 0's data at this place, and take its order.

        Args:
            place: The place of this rank.
            own: What this rank sends first, if rank 0 gathers that.

        Raises:
            Disagreement: Rank 0 is at another place, or a rank that it has gathered from.
            RankEnded: Rank 0 has ended.
        """
        line = self.lines[0]
        if own is not None:
            line.send(place + b"\0" + own)
        while True:
            message = self._read(line, place)
            kind, message = message[:1], message[1:]
            if kind == AT_ONCE:
                self.signals.obey(message)
                continue
            if kind == DISAGREE:
                raise Disagreement(message.decode())
            theirs, order, data = message.split(b"\0", 2)
            if differ(theirs, place):
                if own is None:
                    line.send(place)  # rank 0 may wait for this rank
                raise Disagreement(difference(self.rank, place, 0, theirs))
            if kind == SENT:
                self.signals.ordered(order)
                return data

    def disagree(self, rank: int, theirs: bytes, place: bytes) -> NoReturn:
        """Raise on all ranks that one of them is at another place than rank 0."""
        text = difference(rank, theirs, self.rank, place)
        self.lines.send(DISAGREE + text.encode())
        raise Disagreement(text)

    def _read(self, line: Line, place: bytes) -> bytes:
        """Return the next message; raise if the other rank has ended, and no launcher ends this."""
        try:
            return line.read()
        except RankEnded as error:
            await_end(self.store, self.rank)
            where = place.partition(b" ")[2].decode()
            raise RankEnded(f"{error}, and this rank waits for it in «{where}»") from None


def await_end(store: Store, rank: int) -> None:
    """Leave a launcher, which reports why another rank has ended, the time to end this one."""
    with suppress(RuntimeError):  # the store went with its host
        store.set(f"{WAITS}/{rank}", "")
    time.sleep(LEFT)  # in one, so that the watch sees it idle


def differ(theirs: bytes, own: bytes) -> bool:
    """Return whether two places differ."""
    return theirs != own and without_file(theirs) != without_file(own)


def without_file(place: bytes) -> bytes:
    """Return a place without the name of its file."""
    act, at, line = place.rpartition(b" at ")
    return act + at + line.rpartition(b":")[2] if act else place


def difference(rank: int, theirs: bytes, other: int, own: bytes) -> str:
    """Return the message that a rank is at another place than another rank."""
    (calls, _, there), (others, _, here) = (
        place.decode().partition(" ") for place in (theirs, own)
    )
    after = f" ({calls} side effects came before, {others})" if calls != others else ""
    return (
        f"rank {rank} is in «{there}» where rank {other} is in «{here}»{after}; "
        "a decision in the script differs between ranks"
    )
