"""Connections from the first rank of a node, which loads batches, to the node's other ranks.

The first rank sends only in calls that all ranks make, and blocks while others are behind. This
cannot deadlock: whoever waits, waits for a rank that is behind in the same program, and the last of
them has all messages for it.
"""

from __future__ import annotations

import os
import socket
import weakref
from contextlib import suppress
from io import BufferedReader, BytesIO, FileIO
from typing import TYPE_CHECKING, Any, BinaryIO

from autoddp.comm import control_plane
from autoddp.comm.timeout import Timeout

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class NodeLink:
    """The connections of a node's first rank with all others, or of another rank with it.

    For each pass they carry one end of a new socket, since threads may read several passes at once.
    """

    def __init__(self, sockets: dict[int, socket.socket], rank: int, first: int) -> None:
        self.sockets, self.first, self.is_first = sockets, first, rank == first
        self._ends: weakref.WeakSet[Any] = weakref.WeakSet()  # of passes
        os.register_at_fork(after_in_child=self.close)  # else workers keep them open

    def close(self) -> None:
        """Close all connections, those of passes among them; a second call does nothing."""
        for end in (*self.sockets.values(), *self._ends):
            end.close()

    def begin(self) -> dict[int, Any]:
        """Connect the same ranks for a pass that all of them begin.

        Returns:
            On the first rank a socket for each other rank; on another rank a stream from the first.
        """
        found = {
            rank: (_sent if self.is_first else _received)(s) for rank, s in self.sockets.items()
        }
        # not a stream itself, whose lock another thread may hold at a fork
        self._ends.update(getattr(end, "raw", end) for end in found.values())
        return found


def _sent(link: socket.socket) -> socket.socket:
    """Return one end of a new connection, whose other end is sent."""
    here, there = socket.socketpair()
    with there, suppress(OSError):  # a rank that has ended: its launcher ends the job
        socket.send_fds(link, [b"."], [there.fileno()], socket.MSG_NOSIGNAL)
    return here


def _received(link: socket.socket) -> BinaryIO:
    """Return the end that was sent as a stream, which is empty if the first rank has ended."""
    with suppress(OSError):
        for descriptor in socket.recv_fds(link, 1, 1, socket.MSG_CMSG_CLOEXEC)[1]:
            return BufferedReader(FileIO(descriptor))
    return BytesIO()


def connect(run: Run) -> NodeLink:
    """Connect the ranks of each node. A collective call."""
    group, rank = run.group, run.world.rank
    placed = group.nodes()
    ranks = [other for other, node in enumerate(placed) if node == placed[rank]]
    # a job may have several sessions
    key = f"loading/{ranks[0]}/{group.store.add(f'loading/of/{rank}', 1)}"
    sockets = control_plane.connect(rank, ranks, group.store, key, Timeout(60.0))
    return NodeLink(sockets, rank, ranks[0])
