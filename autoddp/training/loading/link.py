"""Connections between the first rank of a node, which loads batches, and the node's other ranks.

The first rank sends only in calls of the script that the others make, too, and waits where they
have not taken what it sent. That cannot deadlock: all ranks run one program, so whoever waits here
waits for a rank that is further behind in it, and the one that is furthest behind finds all that it
was sent.
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
    """The connections of the first rank with all others of its node, or of another one with it.

    Passes share them, and a pass may be read in a thread of the script's: who finds the message of
    another pass leaves it there.
    """

    def __init__(self, sockets: dict[int, socket.socket], rank: int, first: int) -> None:
        self.sockets, self.first, self.is_first = sockets, first, rank == first
        self._sending, self._heard = threading.Lock(), threading.Condition()
        self._reading = False
        self._passes: weakref.WeakValueDictionary[int, SharedPass] = weakref.WeakValueDictionary()
        self._early: dict[int, list[Any]] = {}  # messages of passes that this rank will begin
        self._begun = 0
        this = weakref.ref(self)  # the interpreter keeps what it calls after a fork for ever

        def leave() -> None:
            link = this()
            if link is not None:
                link.close()  # a worker process would keep them open when its rank has ended

        os.register_at_fork(after_in_child=leave)

    def close(self) -> None:
        """Close all connections; a second call is harmless."""
        for connection in self.sockets.values():
            connection.close()

    def begin(self, one: SharedPass) -> int:
        """Return the number of a pass that all ranks begin here."""
        with self._heard:
            self._begun += 1
            self._passes[self._begun] = one
            one.messages.extend(self._early.pop(self._begun, ()))
            return self._begun

    def send(self, payload: Callable[[int], Any], from_worker: bool, mapped: bool = False) -> None:
        """Send each other rank what is said for it; one that has ended is left out from then on.

        Args:
            payload: Called with the number of a rank.
            from_worker: Whether it comes from another process.
            mapped: Whether nobody else writes into what a rank is sent, so that views of shared
                memory need no copy.

        Raises:
            Unfit: It holds what has no meaning, or another one, in another process.
        """
        packed = {rank: Message(payload(rank), from_worker, mapped) for rank in self.sockets}
        with self._sending:
            for rank, message in packed.items():
                try:
                    message.send(self.sockets[rank])
                except OSError:
                    self.sockets.pop(rank).close()  # its launcher sees to the rest

    def receive(self, one: SharedPass) -> Any:
        """Wait for the next message of a pass, and return it.

        Raises:
            RankEnded: The first rank has ended.
        """
        with self._heard:
            while not one.messages:
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
            return one.messages.popleft()

    def _read(self) -> Any:
        try:
            return received(self.sockets[self.first])
        except (EOFError, OSError):
            raise RankEnded(
                f"rank {self.first} has ended, which loads this node's batches, "
                "and this rank waits for one"
            ) from None


def connect(run: Run) -> NodeLink | None:
    """Connect the ranks of each node; None where any does not reach its first. All call this."""
    group, rank = run.group, run.world.rank
    placed = nodes(group)
    ranks = [other for other, node in enumerate(placed) if node == placed[rank]]
    # there may be several sessions in a job
    key = f"loading/{ranks[0]}/{group.store.add(f'loading/of/{rank}', 1)}"
    patience = Patience(60.0)
    try:
        link = NodeLink(
            control_plane.connect(rank, ranks, group.store, key, patience)[0], rank, ranks[0]
        )
    except AutoDDPError:  # a container of its own: the name is not known there
        link = None
    if group.agree(link is not None):
        return link
    if link is not None:
        link.close()
    return None
