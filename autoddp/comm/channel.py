"""The control plane: lines between rank 0 and each other rank, unix sockets or TCP.

A rank has four lines: for calls, for collectives, for orders beside these, and for the threads that
watch. Rank 0 says in the store where it listens, and a token that whoever connects must know.
Forked children have no lines: a data loader's worker neither speaks for its rank nor makes it seem
alive when it has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import struct
import time
import weakref
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from autoddp.comm.line import Line
from autoddp.errors import AutoDDPError

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.world import World

KEY = "channel"  # in the store: where rank 0 listens, and what to say there
HELLO = struct.Struct(">16sIB")  # the token, the rank, the line
GREETING = 5.0  # seconds that whoever connects has to say who it is
ORDERS, BEATS, EFFECTS, MEETINGS = range(4)


class Lines(dict[int, Line]):
    """The lines of one kind: on rank 0 to each other rank, on another rank to rank 0."""

    def say(self, message: bytes) -> None:
        """Send a message by all of them."""
        for line in self.values():
            line.send(message)

    def hear(self) -> bytes:
        """Wait, on a rank above 0, for the next message of rank 0."""
        return self[0].read()

    def close(self) -> None:
        """Close them; a signal's handler may drop one meanwhile."""
        for line in list(self.values()):
            line.close()


class Channel:
    """The lines of this rank, by kind."""

    def __init__(self) -> None:
        self.orders, self.beats, self.effects, self.meetings = (Lines() for _ in range(4))
        this = weakref.ref(self)  # the interpreter keeps what it calls after a fork for ever

        def leave() -> None:
            channel = this()
            if channel is not None:
                channel.close()

        os.register_at_fork(after_in_child=leave)

    @classmethod
    def between(cls, world: World, store: Store, seconds: float, who: str = "rank") -> Channel:
        """Connect all ranks, or the nodes where `who` says so, for orders alone; all must come."""
        made = cls()
        if world.world_size == 1:
            return made
        kinds = [made.orders]
        if who == "rank":
            kinds += [made.beats, made.effects, made.meetings]
        find = _dialled if world.rank else _admitted
        for number, rank, connected in find(world, store, seconds, who, range(len(kinds))):
            kinds[number][rank] = Line(rank, connected, seconds)
        for lines in kinds:
            for rank in sorted(lines):  # in the order of the ranks
                lines[rank] = lines.pop(rank)
        for line in made.effects.values():
            line.patient = True
        return made

    def waits(self) -> list[tuple[Line, Line]]:
        """Return each line for calls, with the one for orders beside it."""
        return [(line, self.orders[rank]) for rank, line in self.effects.items()]

    def close(self) -> None:
        """Close all lines; a second call does nothing."""
        for lines in (self.orders, self.beats, self.effects, self.meetings):
            lines.close()


Connected = Iterator[tuple[int, int, socket.socket]]  # the number of a line, whose it is, its end


def _dialled(
    world: World, store: Store, seconds: float, who: str, numbers: Iterable[int]
) -> Connected:
    """Call rank 0: by a unix socket, or by TCP where nobody answers to that name."""
    try:
        store.wait([KEY], timedelta(seconds=seconds))
    except RuntimeError:  # torch's DistStoreError
        raise AutoDDPError(
            f"{who} 0 came, but did not say within {seconds:.0f} s where it listens; "
            "lost, or held up"
        ) from None
    where, port, token = json.loads(store.get(KEY))
    for number in numbers:
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(where)
        except ConnectionRefusedError:
            connected.close()
            try:
                connected = socket.create_connection((world.master_addr, port), min(seconds, 60))
            except OSError as error:
                raise AutoDDPError(
                    f"{who} {world.rank} cannot reach {who} 0 at {world.master_addr}:{port} "
                    f"({error}); nodes need to reach node 0 at any port, as gloo does"
                ) from None
        connected.sendall(HELLO.pack(bytes.fromhex(token), world.rank, number))
        yield number, 0, connected


def _admitted(
    world: World, store: Store, seconds: float, who: str, numbers: Iterable[int]
) -> Connected:
    """Wait, on rank 0, for the lines of all other ranks; drop strangers."""
    missing = {(rank, number) for rank in range(1, world.world_size) for number in numbers}
    token, deadline = secrets.token_bytes(16), time.monotonic() + seconds
    with contextlib.ExitStack() as doors:
        near = doors.enter_context(socket.socket(socket.AF_UNIX))
        near.bind(f"\0autoddp-{secrets.token_hex(8)}")  # no file: it is gone with its listener
        near.listen(socket.SOMAXCONN)
        listening = {near.fileno(): near}
        if world.local_world_size < world.world_size:
            far = doors.enter_context(_far())
            listening[far.fileno()] = far
        port = [*listening.values()][-1].getsockname()[1] if len(listening) > 1 else 0
        store.set(KEY, json.dumps([near.getsockname().decode(), port, token.hex()]))
        poller = select.poll()
        for number in listening:
            poller.register(number, select.POLLIN)
        while missing:
            left = deadline - time.monotonic()
            if left <= 0:
                silent = sorted({f"{who} {rank}" for rank, _ in missing})
                raise AutoDDPError(
                    f"{', '.join(silent)} came, but did not call {who} {world.rank} "
                    f"within {seconds:.0f} s; lost, or held up"
                )
            for number, _ in poller.poll(left * 1000):
                caller, _ = listening[number].accept()
                said = _greeting(caller)
                secret, rank, line = HELLO.unpack(said) if len(said) == HELLO.size else (b"", 0, 0)
                if secrets.compare_digest(secret, token) and (rank, line) in missing:
                    missing.discard((rank, line))
                    yield line, rank, caller
                else:
                    caller.close()


def _far() -> socket.socket:
    """Listen at all addresses of this node: ranks elsewhere call where they reach the store."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(
        ("", 0), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=both
    )


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
