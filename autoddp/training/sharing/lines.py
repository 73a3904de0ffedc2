"""Lines between the first rank of a node and its others: messages, and descriptors with them.

They are Unix sockets, which admit processes of the same user that know the token. The first rank
says something only in a call of the script's that the others make, too, and waits only where one
of them is `AHEAD` batches of a pass behind it. That cannot deadlock: all ranks run one program; who
waits here waits for a rank that is further behind in it, or, for a batch, for the first rank where
that one is behind. The rank that is furthest behind finds all that it was sent, and the others have
begun all collectives and effects that it comes to: it goes on until another one is furthest behind.
In threads of the script's each waits for its own pass alone: none holds the lines while it waits.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from autoddp.comm.node_sockets import connect, readable
from autoddp.errors import RankEnded
from autoddp.training.sharing.memory import nameless, read, write

if TYPE_CHECKING:
    from torch.distributed import Store

AHEAD = 4  # batches of one pass that a rank may have before it
SAID = 1 << 14  # bytes of a message; what is longer goes by memory
LONG = struct.Struct("?")  # whether it went by memory
DESCRIPTORS = 253  # of a message, at most
BUFFER = 1 << 22
TAKEN = struct.Struct("I")  # the pass of which a batch was taken
TICK = 0.05
GONE = (BrokenPipeError, ConnectionResetError)

Message = tuple[str, int, Any, list[int]]  # kind, how-manieth, what is said, descriptors


class Lines:
    """The lines of a node's first rank to all others, or those of another rank to the first."""

    def __init__(self, sockets: dict[int, socket.socket], first: int) -> None:
        self.sockets, self.first = sockets, first
        self._lock = threading.Lock()
        self._came = threading.Condition()
        self._inbox: dict[int, deque[Message]] = {}
        self._forgotten: set[int] = set()
        self._reading = False
        self._ahead: dict[int, Counter[int]] = {rank: Counter() for rank in sockets}
        self._ending: deque[int] = deque()
        for connected in sockets.values():
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        this = weakref.ref(self)  # the interpreter keeps what it calls after a fork for ever

        def leave() -> None:
            lines = this()
            if lines is not None:
                lines.close()  # a worker process would keep them open when its rank has ended

        os.register_at_fork(after_in_child=leave)

    def close(self) -> None:
        """Close all lines; a second call is harmless."""
        for connected in self.sockets.values():
            connected.close()

    # ---- the first rank

    def room(self, course: int, ahead: int = AHEAD) -> bool:
        """Return whether no rank has so many batches of this pass before it."""
        return self.behind(course) < ahead

    def behind(self, course: int) -> int:
        """Return the most batches of this pass that any of the other ranks has before it."""
        with self._lock:
            self._take_note()
            return max((theirs[course] for theirs in self._ahead.values()), default=0)

    def wait(self) -> None:
        """Wait until something was taken, or for a moment: another thread may have noted it."""
        readable(*list(self.sockets.values()), seconds=TICK)

    def say(
        self, course: int, kind: str, number: int, said: Any = None, descriptors: Any = ()
    ) -> None:
        """Send a message to all others; a batch counts until it is taken."""
        message, long = pickle.dumps((course, kind, number, said), 5), []
        if len(message) > SAID:
            long = [nameless(len(message))]
            write(long[0], memoryview(message), 0)
            message = b""
        try:
            with self._lock:
                for rank in list(self.sockets):
                    if self._send(rank, LONG.pack(bool(long)) + message, [*descriptors, *long]):
                        self._ahead[rank][course] += kind == BATCH
        finally:
            close(long)
        self._say_ended()

    def end(self, course: int) -> None:
        """Tell the others that this pass has ended; the garbage collector may do so at any time."""
        self._ending.append(course)
        self._say_ended()

    def _say_ended(self) -> None:
        while self._ending and self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(IndexError):
                    course = self._ending.popleft()
                    for rank in list(self.sockets):
                        if self._send(
                            rank, LONG.pack(False) + pickle.dumps((course, ENDED, 0, None), 5), ()
                        ):
                            self._ahead[rank].pop(course, None)
            finally:
                self._lock.release()

    def _send(self, rank: int, message: bytes, descriptors: Any) -> bool:
        """Send a message to a rank, and return whether that rank is there."""
        connected = self.sockets[rank]
        try:
            socket.send_fds(connected, [message], list(descriptors), socket.MSG_NOSIGNAL)
        except GONE:
            self._lose(rank)  # its launcher sees to the rest
            return False
        except OSError:
            if connected.fileno() >= 0:  # else the job is over
                raise
        return True

    def _take_note(self) -> None:
        for rank, connected in list(self.sockets.items()):
            with contextlib.suppress(BlockingIOError):
                try:
                    while said := connected.recv(TAKEN.size, socket.MSG_DONTWAIT):
                        self._ahead[rank][TAKEN.unpack(said)[0]] -= 1
                except ConnectionResetError:
                    pass
                self._lose(rank)

    def _lose(self, rank: int) -> None:
        self.sockets.pop(rank).close()
        del self._ahead[rank]

    # ---- the others

    def hear(self, course: int) -> Message:
        """Wait for what the first rank says next of this pass.

        Raises:
            RankEnded: The first rank has ended without saying it.
        """
        while True:
            with self._came:
                waiting = self._inbox.setdefault(course, deque())
                if waiting:
                    return waiting.popleft()
                if self._reading:
                    self._came.wait(TICK)
                    continue
                self._reading = True
            try:
                self._read()
            finally:
                with self._came:
                    self._reading = False
                    self._came.notify_all()

    def took(self, course: int) -> None:
        """Tell the first rank that a batch was taken: it may send another."""
        with contextlib.suppress(OSError):
            self.sockets[self.first].send(TAKEN.pack(course), socket.MSG_NOSIGNAL)

    def forget(self, course: int) -> None:
        """Drop what comes of this pass, for which nobody asks any more."""
        self._forgotten.add(course)
        for *_, descriptors in self._inbox.pop(course, ()):
            close(descriptors)

    def _read(self) -> None:
        connected = self.sockets[self.first]
        readable(connected)
        try:
            data, descriptors, _, _ = socket.recv_fds(connected, 2 * SAID, DESCRIPTORS)
        except ConnectionResetError:
            # said once, of what the first rank has not read; what it said before is still here
            data, descriptors, _, _ = socket.recv_fds(connected, 2 * SAID, DESCRIPTORS)
        if not data:
            raise RankEnded(
                f"rank {self.first} has ended, which loads this node's batches, "
                "and this rank waits for one"
            )
        if LONG.unpack(data[:1])[0]:
            data = data[:1] + _whole(descriptors.pop())
        course, kind, number, said = pickle.loads(data[1:])
        if course in self._forgotten:
            close(descriptors)
            if kind == ENDED:
                self._forgotten.discard(course)
            return
        with self._came:
            self._inbox.setdefault(course, deque()).append((kind, number, said, descriptors))


STEP, MADE, BATCH, RAISED, YOURSELF, ENDED = "step", "made", "batch", "raised", "yourself", "ended"


def _whole(descriptor: int) -> bytes:
    """Read from memory what was too long for a message."""
    filled = bytearray(os.fstat(descriptor).st_size)
    read(descriptor, memoryview(filled), 0)
    os.close(descriptor)
    return bytes(filled)


def close(descriptors: list[int]) -> None:
    """Close descriptors, as those of a message that nobody asks for."""
    for descriptor in descriptors:
        os.close(descriptor)


def meet(rank: int, ranks: list[int], store: Store) -> Lines | None:
    """Connect the ranks of a node, which must all come; None where one does not reach the first."""
    # of this session; there may be several
    key = f"sharing/{ranks[0]}/{store.add(f'sharing/of/{rank}', 1)}"
    found = connect(rank, ranks, store, key)
    return None if found is None else Lines(found, ranks[0])
