"""The tree by which rank 0 reaches all ranks: a node's first rank stands for the ranks beside it.

Ranks of rank 0's own node, which are woken by a few microseconds' work each, have lines of their
own. Those of another node have one to its first rank: so what rank 0 does for one message grows
with the nodes and with the ranks of its node. A first rank passes on what rank 0 says, and puts its
node's answers into one; what they mean, rank 0 alone judges.

It does so on the thread that runs the script, when it comes to the same place itself: a thread of
its own would wait at each message for the interpreter, which the script holds. So a rank may wait
for the first of its node where rank 0 was done; what it loses is no more than what it could have
done before their next collective, where the first one is missing as well.

That cannot deadlock. All ranks come to the same calls and collectives in the same order. If nobody
got on, consider those that are the least far, and of these the nearest to rank 0. It waits for
nobody's room in a buffer: who has not read is less far. It is in no collective of the backend's
alone: all others are in it, or were. Whoever is to pass a message on to it is further, and has done
so, or is as far and nearer to rank 0, which is a contradiction. So it is rank 0 or the first of a
node, and waits for answers, of ranks that are as far: to these all has been passed on, and they
have answered.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from autoddp.comm.line import Line
from autoddp.errors import RankEnded

ANSWER = struct.Struct(">IQ")  # before each answer: whose it is, and its length
ENDED = (1 << 64) - 1  # in place of a length: that rank has ended


class Tree:
    """One rank's lines in the tree: one up but on rank 0, and down to those it stands for."""

    def __init__(self, rank: int, up: Line | None = None) -> None:
        self.rank, self.up = rank, up
        self.down: dict[int, Line] = {}

    @property
    def lines(self) -> list[Line]:
        """Return all lines of this rank."""
        return [*([self.up] if self.up is not None else []), *self.down.values()]

    def say(self, message: bytes) -> None:
        """Say something, on rank 0, to all ranks."""
        for line in self.down.values():
            line.send(message)

    def hear(self) -> bytes:
        """Wait for what rank 0 says next; pass it on, and return it."""
        assert self.up is not None
        message = self.up.read()
        self.say(message)
        return message

    def tell(self, answer: bytes) -> None:
        """Send rank 0 this rank's answer alone."""
        assert self.up is not None
        self.up.send(ANSWER.pack(self.rank, len(answer)) + answer)

    def answer(self, answer: bytes) -> None:
        """Send rank 0 this rank's answer, with those of the ranks that it stands for."""
        assert self.up is not None
        all_of_them = [ANSWER.pack(self.rank, len(answer)), answer]
        for rank, line in self.down.items():
            try:
                all_of_them.append(line.read())
            except RankEnded:
                all_of_them.append(ANSWER.pack(rank, ENDED))
        self.up.send(b"".join(all_of_them))

    def close(self) -> None:
        """Close all lines of this rank."""
        for line in self.lines:
            line.close()


def answers(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield rank and answer of all those that came in one message.

    Raises:
        RankEnded: One of the ranks has ended without an answer.
    """
    at = 0
    while at < len(message):
        rank, length = ANSWER.unpack_from(message, at)
        if length == ENDED:
            raise RankEnded(f"rank {rank} has ended", rank)
        at += ANSWER.size + length
        yield rank, message[at - length : at]
