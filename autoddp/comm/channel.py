"""Streams between rank 0 and each other rank, for what must not wait for the store.

Each rank has four lines: for side effects, in their order; for orders, beside that order; for
collectives; for what the threads that watch say. They are unix sockets on rank 0's node, TCP from
elsewhere. Forked children have none: a data loader's worker neither speaks for its rank nor makes
it seem alive when it has ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import select
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from autoddp.comm.sockets import address, far, near, prompt
from autoddp.errors import AutoDDPError, RankEnded, Unreachable

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.world import World

KEY = "channel"  # in the store: where rank 0 listens, and what to say there
HELLO = struct.Struct(">16sIB")  # the token, the rank, the line
LENGTH = struct.Struct(">Q")
CHUNK = 1 << 14
F_SETOWN_EX, F_OWNER_TID = 15, 0  # Python lacks them; a main thread has its process's number
LINES = 4
GREETING = 5.0  # seconds that whoever connects has to say who it is
NEVER_MIND = (BrokenPipeError, ConnectionResetError)
DARK = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class Line:
    """A connected socket that carries messages, each with its length before it."""

    def __init__(self, peer: int, connected: socket.socket, seconds: float) -> None:
        self.peer, self.socket, self.seconds = peer, connected, seconds
        self.number = connected.fileno()
        self.address = address(connected)  # empty on one node
        self._dark = False  # the kernel has given the peer up
        connected.setblocking(True)
        prompt(connected)
        # a deadline of the kernel's own: one call, where a timeout of Python's makes two
        whole = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, whole)
        self._held = bytearray()
        self._beside: dict[int, Callable[[], None]] = {self.number: self._receive}
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
            if not isinstance(error, BlockingIOError):
                raise
            raise AutoDDPError(
                f"rank {self.peer} has read nothing for {self.seconds:.0f} s; see where it hangs"
            ) from None

    def read(self) -> bytes:
        """Wait for the next message, and return it.

        Raises:
            RankEnded: The peer has ended without it, or is out of reach.
            AutoDDPError: The peer has said nothing until the deadline.
        """
        while not self._whole():
            ready = self._poll.poll(self.seconds * 1000)
            if not ready:
                raise AutoDDPError(
                    f"rank {self.peer} has said nothing for {self.seconds:.0f} s; "
                    "see where it hangs"
                )
            for number, _ in ready:
                self._beside[number]()
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

    def beside(self, other: Line, act: Callable[[], None]) -> None:
        """Run `act` when something comes by the other line while this one is waited for."""
        self._beside[other.number] = act
        self._poll.register(other.number, select.POLLIN)

    def alone(self, other: Line) -> None:
        """Undo `beside` for the other line."""
        self._poll.unregister(other.number)
        del self._beside[other.number]

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
            if not self._dark and not isinstance(error, ConnectionResetError):
                raise
            data = b""
        if not data and self._dark:
            raise Unreachable(
                f"rank {self.peer} at {self.address} is out of reach: its node, "
                "or the network to it, is lost"
            )
        if not data:
            raise RankEnded(
                f"rank {self.peer} has ended, and this rank goes on: "
                "nothing is done for all any more"
            )
        self._held += data

    def close(self) -> None:
        self.socket.close()


class Channel:
    """The lines of this rank: rank 0's to all others, another rank's to rank 0."""

    def __init__(self, lines: list[dict[int, Line]]) -> None:
        self.effects, self.orders, self.meetings, self.beats = lines
        this = weakref.ref(self)  # the interpreter keeps what it calls after a fork for ever

        def leave() -> None:
            channel = this()
            if channel is not None:
                channel.close()

        os.register_at_fork(after_in_child=leave)

    @classmethod
    def between(
        cls, world: World, store: Store, seconds: float, lines: int = LINES, who: str = "rank"
    ) -> Channel:
        """Connect all ranks, or the nodes where `who` says so; all must come."""
        made: list[dict[int, Line]] = [{} for _ in range(LINES)]
        if world.rank:
            where, port, token = json.loads(_said(store, seconds, who))
            for number, line in enumerate(made[:lines]):
                connected = _dial(world, where, port, seconds, who)
                connected.sendall(HELLO.pack(bytes.fromhex(token), world.rank, number))
                line[0] = Line(0, connected, seconds)
        elif world.world_size > 1:
            with contextlib.ExitStack() as listeners:
                token = secrets.token_bytes(16)
                where = f"\0autoddp-{secrets.token_hex(8)}"  # no file: it is gone with its listener
                doors = [listeners.enter_context(near(where))]
                if world.local_world_size < world.world_size:
                    doors.append(listeners.enter_context(far()))
                port = doors[1].getsockname()[1] if doors[1:] else 0
                store.set(KEY, json.dumps([where, port, token.hex()]))
                missing = {
                    (rank, number) for rank in range(1, world.world_size) for number in range(lines)
                }
                for rank, number, connected in _arrivals(doors, token, missing, seconds, who):
                    made[number][rank] = Line(rank, connected, seconds)
        return cls([dict(sorted(line.items())) for line in made])

    def close(self) -> None:
        """Close all lines; a second call does nothing."""
        for lines in (self.effects, self.orders, self.meetings, self.beats):
            for line in lines.values():
                line.close()


def _said(store: Store, seconds: float, who: str) -> bytes:
    try:
        store.wait([KEY], timedelta(seconds=seconds))
    except RuntimeError:  # torch's DistStoreError
        raise AutoDDPError(
            f"{who} 0 came, but did not say within {seconds:.0f} s where it listens; "
            "lost, or held up"
        ) from None
    return store.get(KEY)


def _dial(world: World, where: str, port: int, seconds: float, who: str) -> socket.socket:
    """Connect to rank 0: by `where` on its node, by TCP where nobody answers to that name."""
    local = socket.socket(socket.AF_UNIX)
    try:
        local.connect(where)
    except ConnectionRefusedError:
        local.close()
    else:
        return local
    try:
        remote = socket.create_connection((world.master_addr, port), min(seconds, 60))
    except OSError as error:
        raise AutoDDPError(
            f"{who} {world.rank} cannot reach {who} 0 at {world.master_addr}:{port} ({error}); "
            "nodes need to reach node 0 at any port, as gloo does"
        ) from None
    return remote


def _arrivals(
    doors: list[socket.socket],
    token: bytes,
    missing: set[tuple[int, int]],
    seconds: float,
    who: str,
) -> Iterator[tuple[int, int, socket.socket]]:
    """Yield rank, line and socket of each caller that knows the token; drop strangers."""
    deadline, poller = time.monotonic() + seconds, select.poll()
    known = {door.fileno(): door for door in doors}
    for number in known:
        poller.register(number, select.POLLIN)
    while missing:
        left = deadline - time.monotonic()
        if left <= 0:
            silent = ", ".join(f"{who} {rank}" for rank in sorted({rank for rank, _ in missing}))
            raise AutoDDPError(
                f"{silent} came, but did not call {who} 0 within {seconds:.0f} s; lost, or held up"
            )
        for number, _ in poller.poll(left * 1000):
            caller, _ = known[number].accept()
            said = _greeting(caller)
            told, rank, line = HELLO.unpack(said) if len(said) == HELLO.size else (b"", 0, 0)
            if not secrets.compare_digest(told, token):
                caller.close()
                continue
            missing.discard((rank, line))
            yield rank, line, caller


def _greeting(caller: socket.socket) -> bytes:
    """Read what a caller says first; ranks say it at once."""
    caller.settimeout(GREETING)
    said = b""
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while len(said) < HELLO.size:
            more = caller.recv(HELLO.size - len(said))
            if not more:
                break
            said += more
    return said
