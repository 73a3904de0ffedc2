"""The protocol by which rank 0 and the others see that they are at the same place of the program.

All ranks run one program, so the n-th message of a rank belongs to the same place as the n-th of
rank 0: after as many calls, of the same kind, and at a line of the same number. The file's name
does not count: code that a library generates may have another one on each rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from time import monotonic  # a script's is patched
from typing import TYPE_CHECKING, NoReturn

from autoddp.errors import Disagreement, RankEnded

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.line import Lines

# the first byte of a message; the place and the data follow
HERE, SENT = b"@", b"="  # of another rank; of rank 0
WHERE = b"?"  # of rank 0: it waits at this place for all others
PARTED = b"!"  # of rank 0: ranks are at different places
AT_ONCE = b"n"  # of rank 0: signals to act on in the midst of a call, at no place
WAITS = "waits"  # in the store: a rank only waits for its end
LEFT = 10.0  # seconds that a launcher has to end this rank once another one has failed
TICK = 0.02


class InOrder:
    """One rank's end of a sequence of places, which has connections of its own.

    Attributes:
        obey: Acts, on another rank, on signals that rank 0 sends in the midst of a call.
    """

    def __init__(self, rank: int, lines: Lines, store: Store) -> None:
        self.rank, self.lines, self.store = rank, lines, store
        self.obey: Callable[[bytes], None] | None = None

    def send(self, place: bytes, order: bytes = b"", data: bytes = b"", kind: bytes = SENT) -> None:
        """Send, on rank 0, its order and its data at a place to all others."""
        self.lines.send(b"\0".join((kind + place, order, data)))

    def gather(self, place: bytes) -> dict[int, bytes]:
        """Return, on rank 0, what each other rank sends at this place, once all are there.

        Raises:
            Disagreement: A rank is at another place.
            RankEnded: A rank has ended.
        """
        found = {}
        for rank, line in self.lines.items():
            try:
                theirs, _, found[rank] = line.read()[1:].partition(b"\0")
            except RankEnded as error:
                self.end(error, place)
            if apart(theirs, place):
                self.part(rank, theirs, place)
        return found

    def receive(self, place: bytes, own: bytes | None = None) -> tuple[bytes, bytes]:
        """Return, on another rank, rank 0's data and its order at this place.

        Args:
            place: The place of this rank.
            own: What this rank sends first, if rank 0 gathers that.

        Raises:
            Disagreement: Rank 0 is at another place, or a rank that it has gathered from.
            RankEnded: Rank 0 has ended.
        """
        line = self.lines[0]
        if own is not None:
            line.send(HERE + place + b"\0" + own)
        while True:
            message = line.read()
            kind, message = message[:1], message[1:]
            if kind == AT_ONCE and self.obey is not None:
                self.obey(message)
                continue
            if kind == PARTED:
                raise Disagreement(message.decode())
            theirs, order, data = message.split(b"\0", 2)
            if apart(theirs, place):
                if own is None:
                    line.send(HERE + place)  # rank 0 may wait for this rank
                raise Disagreement(parted(self.rank, place, 0, theirs))
            if kind == SENT:
                return data, order

    def part(self, rank: int, theirs: bytes, place: bytes) -> NoReturn:
        """Raise on all ranks that one of them is at another place than rank 0."""
        text = parted(rank, theirs, self.rank, place)
        self.lines.send(PARTED + text.encode())
        raise Disagreement(text)

    def end(self, error: RankEnded, place: bytes) -> NoReturn:
        """Raise that another rank has ended, once no launcher has ended this one for that."""
        well = " with exit code 0" if await_end(self.store, self.rank, error.rank) else ""
        where = place.partition(b" ")[2].decode()
        raise RankEnded(
            f"rank {error.rank} has ended{well}, and this rank waits for it in «{where}»",
            error.rank,
        ) from None


def await_end(store: Store, rank: int, lost: int | None = None) -> bool:
    """Wait until a launcher, which reports why another rank ended, ends this one.

    Returns:
        Whether the lost rank has ended with exit code 0, which its launcher does not mention.
    """
    deadline = monotonic() + LEFT
    with suppress(RuntimeError):  # the store went with its host
        store.set(f"{WAITS}/{rank}", "")
        while lost is not None and monotonic() < deadline:
            if not store.check([f"ended/{lost}"]):
                time.sleep(TICK)
            elif store.get(f"ended/{lost}") == b"0":
                return True
            else:
                lost = None
    time.sleep(max(0.0, deadline - monotonic()))  # in one, so that the watch sees it idle
    return False


def apart(theirs: bytes, own: bytes) -> bool:
    """Return whether two places differ."""
    return theirs != own and without_file(theirs) != without_file(own)


def without_file(place: bytes) -> bytes:
    """Return a place without the name of its file."""
    act, at, line = place.rpartition(b" at ")
    return act + at + line.rpartition(b":")[2] if act else place


def parted(rank: int, theirs: bytes, other: int, own: bytes) -> str:
    """Return the message that a rank is at another place than another rank."""
    (calls, _, there), (others, _, here) = (
        place.decode().partition(" ") for place in (theirs, own)
    )
    after = f" ({calls} side effects came before, {others})" if calls != others else ""
    return (
        f"rank {rank} is in «{there}» where rank {other} is in «{here}»{after}; "
        "a decision in the script differs between ranks"
    )
