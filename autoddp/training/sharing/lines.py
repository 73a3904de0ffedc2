"""Pipes between the first rank of a node and its others: one for each pass over a loader.

The first rank says something only in a call of the script's that the others make, too, and waits
only where one of them is `AHEAD` batches of a pass behind it. That cannot deadlock: all ranks run
one program; who waits here waits for a rank that is further behind in it, or, for a batch, for the
first rank where that one is behind. The rank that is furthest behind finds all that it was sent,
and the others have begun all collectives and effects that it comes to.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import weakref
from collections import Counter
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from autoddp.comm.control_plane import connect
from autoddp.comm.topology import nodes
from autoddp.errors import AutoDDPError, RankEnded

if TYPE_CHECKING:
    from autoddp.effects.run import Run

AHEAD = 4  # batches of one pass that a rank may have before it
MADE, BATCH, RAISED, YOURSELF, ENDED = "made", "batch", "raised", "yourself", "ended"
MARK = b"."  # a byte that descriptors come with; or word that a batch was taken
GONE = (BrokenPipeError, ConnectionResetError)

Message = tuple[str, int, Any]  # kind, how-manieth, what is said


class Pipes:
    """The pipes of one pass: of the first rank to all others, or of another one to the first."""

    def __init__(self, pipes: dict[int, Connection], first: int) -> None:
        self.pipes, self.first = pipes, first
        self._ahead = Counter[int]()

    def close(self) -> None:
        """Close all; a second call is harmless."""
        for pipe in self.pipes.values():
            pipe.close()

    def say(self, kind: str, number: int, said: Any = None, descriptors: Any = ()) -> None:
        """Send a message to all others; a batch counts until it is taken."""
        body = pickle.dumps((kind, number, said, len(descriptors)), 5)
        for rank, pipe in list(self.pipes.items()):
            if pipe.closed:  # the job is over
                continue
            try:
                pipe.send_bytes(body)
                if descriptors:
                    with _as_socket(pipe) as channel:
                        socket.send_fds(channel, [MARK], descriptors)
            except GONE:
                self._lose(rank)  # its launcher sees to the rest
            else:
                self._ahead[rank] += kind == BATCH

    def room(self) -> bool:
        """Return whether no other rank has so many batches before it that it did not take."""
        for rank, pipe in list(self.pipes.items()):
            try:
                while pipe.poll():
                    pipe.recv_bytes()
                    self._ahead[rank] -= 1
            except (EOFError, *GONE):
                self._lose(rank)
        return all(self._ahead[rank] < AHEAD for rank in self.pipes)

    def wait(self) -> None:
        """Wait until something was taken, or a rank has ended."""
        wait(list(self.pipes.values()))

    def _lose(self, rank: int) -> None:
        self.pipes.pop(rank).close()

    def hear(self) -> tuple[Message, list[int]]:
        """Wait for the next word of the first rank; return it with descriptors, to be closed.

        Raises:
            RankEnded: The first rank has ended without saying it.
        """
        pipe = self.pipes[self.first]
        try:
            kind, number, said, count = pickle.loads(pipe.recv_bytes())
            descriptors: list[int] = []
            if count:
                with _as_socket(pipe) as channel:
                    descriptors = _received(channel, count)
        except (EOFError, OSError):
            raise RankEnded(
                f"rank {self.first} has ended, which loads this node's batches, "
                "and this rank waits for one"
            ) from None
        return (kind, number, said), descriptors

    def took(self) -> None:
        """Tell the first rank that a batch was taken: it may send another."""
        with contextlib.suppress(OSError):
            self.pipes[self.first].send_bytes(MARK)


class NodeLines:
    """The sockets that connect this rank with the first of its node, or that one with all others.

    All ranks of the node begin their passes in one order, and each gets its pipe by them.
    """

    def __init__(self, sockets: dict[int, socket.socket], rank: int, first: int) -> None:
        self.sockets, self.rank, self.first = sockets, rank, first
        self._open: weakref.WeakSet[Pipes] = weakref.WeakSet()
        this = weakref.ref(self)  # the interpreter keeps what it calls after a fork for ever

        def leave() -> None:
            lines = this()
            if lines is not None:
                lines.close()  # a worker process would keep them open when its rank has ended

        os.register_at_fork(after_in_child=leave)

    def close(self) -> None:
        """Close the lines, and the pipes of all passes."""
        for line in self.sockets.values():
            line.close()
        for pipes in self._open:
            pipes.close()

    def begin(self) -> Pipes:
        """Make the pipes of a pass.

        Raises:
            RankEnded: The first rank has ended.
        """
        made = Pipes({rank: self._pipe(line) for rank, line in self.sockets.items()}, self.first)
        self._open.add(made)
        return made

    def _pipe(self, line: socket.socket) -> Connection:
        if self.rank == self.first:
            mine, theirs = socket.socketpair()
            with theirs, contextlib.suppress(*GONE):
                socket.send_fds(line, [MARK], [theirs.fileno()], socket.MSG_NOSIGNAL)
            return Connection(mine.detach())
        found = _received(line, 1)
        if not found:
            raise RankEnded(f"rank {self.first} has ended, which loads this node's batches")
        return Connection(found[0])


def _as_socket(pipe: Connection) -> socket.socket:
    return socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)


def _received(channel: socket.socket, count: int) -> list[int]:
    return socket.recv_fds(channel, len(MARK), count, socket.MSG_CMSG_CLOEXEC)[1]


def meet(run: Run) -> NodeLines | None:
    """Connect the ranks of each node; None where any does not reach its first. All call this."""
    group, rank = run.group, run.world.rank
    placed = nodes(group)
    ranks = [other for other, node in enumerate(placed) if node == placed[rank]]
    # of this session; there may be several
    key = f"sharing/{ranks[0]}/{group.store.add(f'sharing/of/{rank}', 1)}"
    try:
        lines = NodeLines(connect(rank, ranks, group.store, key)[0], rank, ranks[0])
    except AutoDDPError:
        lines = None
    if group.agree(lines is not None):
        return lines
    if lines is not None:
        lines.close()
    return None
