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
from collections.abc import Callable
from time import monotonic  # a script's is patched

from autoddp.errors import AutoDDPError, RankEnded, Unreachable

LENGTH = struct.Struct(">Q")
CHUNK = 1 << 14
TICK = 0.0002
F_SETOWN_EX, F_OWNER_TID = 15, 0  # Python lacks them; a main thread has its process's number
NEVER_MIND = (BrokenPipeError, ConnectionResetError)
DARK = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class Line:
    """A connected socket that carries messages, each with its length before it."""

    def __init__(self, peer: int, connected: socket.socket, seconds: float) -> None:
        self.peer, self.socket, self.seconds = peer, connected, seconds
        self.number = connected.fileno()
        self.address = _address(connected)  # empty on one node
        self._dark = False  # the kernel has given the peer up
        self._closed = False  # by this process; a signal's handler may still use the line
        self.patient = False  # what the peer acts on may take any time: a download, a prompt
        connected.setblocking(True)
        prompt(connected)
        # a deadline of the kernel's own: one call, where a timeout of Python's makes two
        whole = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, whole)
        self._held = bytearray()
        self._watched: dict[int, Callable[[], None]] = {self.number: self._receive}
        self._poll = select.poll()
        self._poll.register(self.number, select.POLLIN)

    def send(self, data: bytes) -> None:
        """Send a message whole; if the peer has ended, its launcher sees to the rest.

        If the peer has read nothing until the deadline, raise AutoDDPError.
        """
        try:
            # nobody shall die of a peer that has ended, whatever the script does about SIGPIPE
            self.socket.sendall(LENGTH.pack(len(data)) + data, socket.MSG_NOSIGNAL)
        except NEVER_MIND:
            pass
        except OSError as error:
            if error.errno in DARK:
                self._dark = True  # whoever reads is told
                return
            if self._closed:
                return
            if not isinstance(error, BlockingIOError):
                raise
            raise AutoDDPError(
                f"rank {self.peer} has read nothing for {self.seconds:.0f} s; see where it hangs"
            ) from None

    def settle(self, seconds: float) -> None:
        """Wait until another node has what was sent: no other connection shall overtake it."""
        if self.socket.family == socket.AF_UNIX:
            return
        deadline, left = monotonic() + seconds, struct.pack("i", 1)
        while struct.unpack("i", left)[0] and monotonic() < deadline:
            left = fcntl.ioctl(self.socket, termios.TIOCOUTQ, left)
            time.sleep(TICK)

    def read(self) -> bytes:
        """Wait for the next message, and return it.

        Raises:
            RankEnded: The peer has ended without it, or is out of reach.
            AutoDDPError: The peer has said nothing until the deadline, if there is one.
        """
        while not self._whole():
            ready = self._poll.poll(None if self.patient else self.seconds * 1000)
            if not ready:
                raise AutoDDPError(
                    f"rank {self.peer} has said nothing for {self.seconds:.0f} s; "
                    "see where it hangs"
                )
            for number, _ in ready:
                self._watched[number]()
        return self._pop()

    def peek(self) -> bytes | None:
        """Return the next message without taking it; None where it is not here."""
        with contextlib.suppress(RankEnded):
            self._receive()
        if not self._whole():
            return None
        return bytes(self._held[LENGTH.size : LENGTH.size + LENGTH.unpack_from(self._held)[0]])

    def arrived(self) -> list[bytes]:
        """Return the messages that are here; raise RankEnded if none is, and none will come."""
        self._receive()
        messages = []
        while self._whole():
            messages.append(self._pop())
        return messages

    def also_watch(self, other: Line, act: Callable[[], None]) -> None:
        """Run `act` when something comes by the other line while this one is waited for."""
        self._watched[other.number] = act
        self._poll.register(other.number, select.POLLIN)

    def stop_watching(self, other: Line) -> None:
        """Watch the other line no more."""
        self._poll.unregister(other.number)
        del self._watched[other.number]

    def announce(self, number: int) -> None:
        """Have the kernel send this process's main thread a signal when something comes."""
        # sent to the process, it may wake another thread, which then takes what waits for the main
        # one, too: in a long sleep the main thread would never hear of either
        fcntl.fcntl(self.number, fcntl.F_SETSIG, number)
        fcntl.fcntl(self.number, F_SETOWN_EX, struct.pack("ii", F_OWNER_TID, os.getpid()))
        fcntl.fcntl(
            self.number, fcntl.F_SETFL, fcntl.fcntl(self.number, fcntl.F_GETFL) | os.O_ASYNC
        )

    def limit(self, seconds: float) -> None:
        """Give the peer's node up once it has taken no data for `seconds`: see `Unreachable`."""
        if self.address:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))

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
            self._dark |= error.errno in DARK
            if not (self._dark or self._closed or isinstance(error, ConnectionResetError)):
                raise
            data = b""
        if not data and self._dark:
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

    def close(self) -> None:
        """Close the line: who reads it here is told that the peer has ended, who sends is not."""
        self._closed = True
        self.socket.close()


def _address(connected: socket.socket) -> str:
    """Return the peer's address; empty on one node."""
    if connected.family == socket.AF_UNIX:
        return ""
    return str(connected.getpeername()[0]).removeprefix("::ffff:")


def prompt(other: socket.socket) -> None:
    """Have small messages leave at once, and a node that went dark be noticed."""
    if other.family == socket.AF_UNIX:
        return
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)
