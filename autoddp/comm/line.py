"""A line between two processes: a connected socket that carries messages."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import termios
import time
from time import monotonic  # a script's is patched

from autoddp.errors import AutoDDPError, RankEnded, Unreachable

LENGTH = struct.Struct(">Q")
CHUNK = 1 << 14
TICK = 0.0002
F_SETOWN_EX, F_OWNER_TID = 15, 0  # Python lacks them; a main thread has its process's number
DARK = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
# small messages leave at once, and a node that went dark is noticed
PROMPT = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)


class Line:
    """A connected socket that carries messages, each with its length before it.

    It may be closed in the midst of a call: who reads is told that the peer has ended.
    """

    def __init__(self, peer: int, connected: socket.socket, seconds: float) -> None:
        self.peer, self.socket, self.seconds = peer, connected, seconds
        self.number = connected.fileno()
        self.address = ""  # of the peer, if it is on another node
        connected.setblocking(True)
        # a deadline of the kernel's own: one call, where a timeout of Python's makes two
        whole = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, whole)
        if connected.family != socket.AF_UNIX:
            self.address = str(connected.getpeername()[0]).removeprefix("::ffff:")
            for option in PROMPT:
                connected.setsockopt(*option)
        self._failed: int | None = 0  # why nothing comes or goes any more
        self._held = bytearray()
        self._poll = select.poll()
        self._poll.register(self.number, select.POLLIN)

    def send(self, data: bytes) -> None:
        """Send a message whole; if the peer has ended, its launcher sees to the rest.

        Raises:
            AutoDDPError: The peer has read nothing until the deadline.
        """
        try:
            # nobody shall die of a peer that has ended, whatever the script does about SIGPIPE
            self.socket.sendall(LENGTH.pack(len(data)) + data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            raise AutoDDPError(
                f"rank {self.peer} has read nothing for {self.seconds:.0f} s; see where it hangs"
            ) from None
        except OSError as error:
            self._failed = error.errno  # whoever reads is told

    def settle(self, seconds: float) -> None:
        """Wait until another node has what was sent: no other connection shall overtake it."""
        if not self.address:
            return
        deadline, left = monotonic() + seconds, struct.pack("i", 1)
        while struct.unpack("i", left)[0] and monotonic() < deadline:
            left = fcntl.ioctl(self.socket, termios.TIOCOUTQ, left)
            time.sleep(TICK)

    def comes(self, seconds: float) -> bool:
        """Return whether a message is here within so many seconds; raise like `read`."""
        while not self._whole():
            if not self._poll.poll(seconds * 1000):
                return False
            self._receive()
        return True

    def read(self) -> bytes:
        """Wait for the next message, and return it; the watch sees where nobody comes.

        Raises:
            RankEnded: The peer has ended without it, or is out of reach.
        """
        while not self._whole():
            self._poll.poll()
            self._receive()
        return self._pop()

    def next_is(self, kind: bytes) -> bool:
        """Return whether the next message is here, and begins with this byte."""
        if not self._whole():
            with contextlib.suppress(RankEnded):
                self._receive()
        return self._whole() and self._held[LENGTH.size] == kind[0]

    def arrived(self) -> list[bytes]:
        """Return the messages that are here; raise RankEnded if none is, and none will come."""
        self._receive()
        messages = []
        while self._whole():
            messages.append(self._pop())
        return messages

    def announce(self, number: int) -> None:
        """Have the kernel send this process's main thread a signal when something comes."""
        # sent to the process, it may wake another thread, which then takes what waits for the main
        # one, too: in a long sleep the main thread would never hear of either
        fcntl.fcntl(self.number, fcntl.F_SETSIG, number)
        fcntl.fcntl(self.number, F_SETOWN_EX, struct.pack("ii", F_OWNER_TID, os.getpid()))
        flags = fcntl.fcntl(self.number, fcntl.F_GETFL)
        fcntl.fcntl(self.number, fcntl.F_SETFL, flags | os.O_ASYNC)

    def limit(self, seconds: float) -> None:
        """Give the peer's node up once it has taken no data for `seconds`: see `Unreachable`."""
        if self.address:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))

    def close(self) -> None:
        """Close the line; a second call does nothing."""
        self.socket.close()

    def _whole(self) -> bool:
        held = self._held
        return len(held) >= LENGTH.size and len(held) >= LENGTH.size + LENGTH.unpack_from(held)[0]

    def _pop(self) -> bytes:
        held = self._held
        end = LENGTH.size + LENGTH.unpack_from(held)[0]
        data = bytes(memoryview(held)[LENGTH.size : end])
        del held[:end]
        return data

    def _receive(self) -> None:
        missing = LENGTH.unpack_from(self._held)[0] if len(self._held) >= LENGTH.size else 0
        try:
            data = self.socket.recv(max(CHUNK, missing), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            self._failed, data = error.errno, b""
        if not data and self._failed in DARK:
            raise Unreachable(
                f"rank {self.peer} at {self.address} is out of reach: its node, "
                "or the network to it, is lost",
                self.peer,
            )
        if not data:
            raise RankEnded(
                f"rank {self.peer} has ended, and this rank goes on: "
                "nothing is done for all any more",
                self.peer,
            )
        self._held += data


class Lines(dict[int, Line]):
    """The lines of one kind: on rank 0 to each other rank, on another rank to rank 0."""

    def say(self, message: bytes) -> None:
        """Send a message by all of them."""
        for line in self.values():
            line.send(message)

    def close(self) -> None:
        """Close them; a signal's handler may drop one meanwhile."""
        for line in list(self.values()):
            line.close()
