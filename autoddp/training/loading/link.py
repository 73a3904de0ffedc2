"""Connections from the first rank of a node, which loads batches, to the node's other ranks.

The first rank sends only in calls that all ranks make, and blocks while others are behind. This
cannot deadlock: whoever waits, waits for a rank that is behind in the same program, and the last of
them has all messages for it.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autoddp.comm import control_plane
from autoddp.comm.patience import Patience
from autoddp.comm.topology import nodes
from autoddp.errors import AutoDDPError, RankEnded
from autoddp.training.loading.message import Message, received

if TYPE_CHECKING:
    from autoddp.effects.run import Run
    from autoddp.training.loading.shared_pass import SharedPass


class NodeLink:
    """The connections of a node's first rank with all others, or of another rank with it.

    Passes share them, and threads of the script may read several passes: a reader that receives the
    message of another pass stores it there.
    """

    def __init__(self, sockets: dict[int, socket.socket], rank: int, first: int) -> None:
        self.sockets, self.first, self.is_first = sockets, first, rank == first
        self._sending, self._heard = threading.Lock(), threading.Condition()
        self._reading = False
        self._passes: weakref.WeakValueDictionary[int, SharedPass] = weakref.WeakValueDictionary()
        self._early: dict[int, list[Any]] = {}  # messages of passes that begin later here
        self._begun = 0
        this = weakref.ref(self)  # at-fork callbacks are never freed

        def close_in_child() -> None:
            link = this()
            if link is not None:
                link.close()  # else workers keep them open

        os.register_at_fork(after_in_child=close_in_child)

    def close(self) -> None:
        """Close the connections to all ranks."""
        for connection in self.sockets.values():
            connection.close()

    def begin(self, shared_pass: SharedPass) -> int:
        """Register a pass that all ranks begin, and return its number."""
        with self._heard:
            self._begun += 1
            self._passes[self._begun] = shared_pass
            shared_pass.messages.extend(self._early.pop(self._begun, ()))
            return self._begun

    def send(self, payload: Callable[[int], Any], from_worker: bool, mapped: bool = False) -> None:
        """Send a message to each other rank; one that has ended is dropped.

        Args:
            payload: Returns what is sent to a rank.
            from_worker: Whether it comes from a worker process.
            mapped: Whether the sender no longer writes into shared memory in it, so that this need
                not be copied.

        Raises:
            NotTransferable: Another process cannot have it.
        """
        packed = {rank: Message(payload(rank), from_worker, mapped) for rank in self.sockets}
        with self._sending:
            for rank, message in packed.items():
                try:
                    message.send(self.sockets[rank])
                except OSError:
                    self.sockets.pop(rank).close()  # its launcher ends the job

    def receive(self, shared_pass: SharedPass) -> Any:
        """Wait for the next message of a pass.

        Raises:
            RankEnded: The first rank has ended.
        """
        with self._heard:
            while not shared_pass.messages:
                if self._reading:
                    self._heard.wait()
                    continue
                self._reading = True
                self._heard.release()
                try:
                    number, message = self._read()
                finally:
                    self._heard.acquire()
                    self._reading = False
                    self._heard.notify_all()
                if number > self._begun:  # the first rank is ahead, and a thread reads here
                    self._early.setdefault(number, []).append(message)
                elif (owner := self._passes.get(number)) is not None:
                    owner.messages.append(message)
            return shared_pass.messages.popleft()

    def _read(self) -> Any:
        try:
            return received(self.sockets[self.first])
        except (EOFError, OSError):
            raise RankEnded(
                f"rank {self.first} has ended, and this rank waits for a batch that it loads"
            ) from None


def connect(run: Run) -> NodeLink | None:
    """Connect the ranks of each node; None if any is unreachable. A collective call."""
    group, rank = run.group, run.world.rank
    placed = nodes(group)
    ranks = [other for other, node in enumerate(placed) if node == placed[rank]]
    # a job may have several sessions
    key = f"loading/{ranks[0]}/{group.store.add(f'loading/of/{rank}', 1)}"
    patience = Patience(60.0)
    try:
        link = NodeLink(
            control_plane.connect(rank, ranks, group.store, key, patience)[0], rank, ranks[0]
        )
    except AutoDDPError:  # containers may not resolve the name
        link = None
    if group.agree(link is not None):
        return link
    if link is not None:
        link.close()
    return None
