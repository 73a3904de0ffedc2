"""A connection between two ranks that carries messages.

`multiprocessing.connection` lacks two things: a write to a rank that has ended sends SIGPIPE, which
kills a script that has set the signal's default action; and a signal handler cannot read what has
arrived without blocking.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress

from autoddp.errors import RankEnded

LENGTH = struct.Struct(">Q")
CHUNK = 1 << 14
F_SETOWN_EX, F_OWNER_TID = 15, 0  # Python lacks them; a main thread has its process's number


class Line:
    """A connected socket that carries messages, each after its length.

    Another thread or a signal handler may close it during a call, which then raises RankEnded.
    """

    def __init__(self, peer: int, connected: socket.socket) -> None:
        self.peer, self.socket = peer, connected
        connected.setblocking(True)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held = bytearray()

    def send(self, data: bytes) -> None:
        """Send a message whole; if the peer has ended, the next read raises RankEnded."""
        with suppress(OSError):
            self.socket.sendall(LENGTH.pack(len(data)) + data, socket.MSG_NOSIGNAL)

    def read(self) -> bytes:
        """Wait for the next message, and return it.

        Raises:
            RankEnded: The peer has ended without it, or its node is out of reach.
        """
        while (message := self._pop()) is None:
            self._receive()
        return message

    def arrived(self) -> list[bytes]:
        """Return the messages that have arrived; raise RankEnded if none has, and none will."""
        self._receive(socket.MSG_DONTWAIT)
        return list(iter(self._pop, None))

    def has_ended(self) -> bool:
        """Return whether the peer has ended, and nothing is left to read."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def announce(self, number: int) -> None:
        """Have the kernel send a signal to this process's main thread when something arrives."""
        # sent to the process, it may wake another thread, which then takes what waits for the main
        # one, too: in a long sleep the main thread would never hear of either
        fcntl.fcntl(self.socket, fcntl.F_SETSIG, number)
        fcntl.fcntl(self.socket, F_SETOWN_EX, struct.pack("ii", F_OWNER_TID, os.getpid()))
        flags = fcntl.fcntl(self.socket, fcntl.F_GETFL)
        fcntl.fcntl(self.socket, fcntl.F_SETFL, flags | os.O_ASYNC)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self.socket.close()

    def _pop(self) -> bytes | None:
        """Return the next message once it has arrived whole."""
        held, start = self._held, LENGTH.size
        if len(held) < start or len(held) < (end := start + LENGTH.unpack_from(held)[0]):
            return None
        data = bytes(memoryview(held)[start:end])
        del held[:end]
        return data

    def _receive(self, flags: int = 0) -> None:
        missing = LENGTH.unpack_from(self._held)[0] if len(self._held) >= LENGTH.size else 0
        try:
            data = self.socket.recv(max(CHUNK, missing), flags)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise RankEnded(f"rank {self.peer} has ended, or its node is out of reach")
        self._held += data


class Lines(dict[int, Line]):
    """The connections of one kind: from rank 0 to each other rank, from another rank to rank 0."""

    def send(self, message: bytes) -> None:
        """Send a message by all of them."""
        for line in self.values():
            line.send(message)
