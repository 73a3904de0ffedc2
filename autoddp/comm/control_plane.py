"""The control plane: connections between rank 0 and each other rank.

Rank 0 publishes in the store where it listens, and a key that who connects must send. Ranks of
its node connect by a unix socket, ranks of other nodes by TCP. A rank has four connections: for
calls, for collectives, for signals, and for the threads that watch. Forked children have none: a
data loader's worker neither speaks for its rank nor makes it seem alive once it has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import weakref
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from autoddp.comm.line import Line, Lines
from autoddp.comm.patience import Patience, missing
from autoddp.errors import AutoDDPError

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.world import World

KEY = "channel"  # in the store: the addresses of rank 0, and the key
HELLO = struct.Struct(">16sIB")  # the key, the rank, the number of its connection
GREETING = 5.0  # seconds in which whoever connects must have sent that
DIALLED = 60.0  # seconds in which another node must answer
TICK = 0.05  # seconds between two looks at the store

Sockets = list[dict[int, socket.socket]]  # by number of the connection, and by rank


class Channel:
    """The connections of this rank, by kind."""

    def __init__(self) -> None:
        self.orders, self.beats, self.calls, self.meetings = kinds = [Lines() for _ in range(4)]
        self.kinds = kinds
        this = weakref.ref(self)  # the interpreter never drops what it calls after a fork

        def leave() -> None:
            channel = this()
            if channel is not None:
                channel.close()

        os.register_at_fork(after_in_child=leave)

    @classmethod
    def between(cls, world: World, store: Store, patience: Patience) -> Channel:
        """Connect all ranks, each of which calls this."""
        made = cls()
        if world.world_size == 1:
            return made
        ranks, near = list(range(world.world_size)), world.local_world_size == world.world_size
        address = "" if near else world.master_addr
        found = connect(world.rank, ranks, store, KEY, patience, address, len(made.kinds))
        for lines, sockets in zip(made.kinds, found, strict=True):
            lines.update({rank: Line(rank, connected) for rank, connected in sockets.items()})
        return made

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        for lines in self.kinds:
            lines.close()


def connect(
    rank: int,
    ranks: list[int],
    store: Store,
    key: str,
    patience: Patience,
    address: str = "",
    count: int = 1,
) -> Sockets:
    """Connect the first of `ranks` with each of the others, all of which call this.

    Args:
        rank: The rank that calls.
        ranks: The ranks to connect.
        store: A store of all of them.
        key: The name in the store under which the first one publishes where it listens.
        patience: The wait of the first one for the others.
        address: The first one's, for ranks on other nodes if there are any.
        count: The number of sockets to each.

    Returns:
        The sockets to each other rank on the first, those to the first on another one.

    Raises:
        AutoDDPError: A rank does not come in time, or does not reach the first.
    """
    if rank == ranks[0]:
        return _accept(ranks, store, key, patience, address, count)
    store.wait([key], timedelta(seconds=patience.seconds))
    where, port, secret = json.loads(store.get(key))
    try:
        made = [_dial(where, address, port, DIALLED) for _ in range(count)]
        for number, connected in enumerate(made):
            connected.sendall(HELLO.pack(bytes.fromhex(secret), rank, number))
    except OSError as error:
        store.set(f"{key}/lost", f"{rank}")
        raise AutoDDPError(
            f"rank {rank} cannot reach rank {ranks[0]} at {address or 'its name'}:{port} "
            f"({error}); nodes need to reach node 0 at any port, as gloo does"
        ) from None
    return [{ranks[0]: connected} for connected in made]


def _dial(where: str, address: str, port: int, seconds: float) -> socket.socket:
    """Connect by the unix socket, or by TCP where it does not exist: on another node."""
    near = socket.socket(socket.AF_UNIX)
    try:
        near.connect(where)
    except ConnectionRefusedError:
        near.close()
        if not address:
            raise
        return socket.create_connection((address, port), seconds)
    return near


def _accept(
    ranks: list[int], store: Store, key: str, patience: Patience, address: str, count: int
) -> Sockets:
    """Wait, on the first rank, for all sockets of all others; drop strangers."""
    left = {(rank, number) for rank in ranks[1:] for number in range(count)}
    found: Sockets = [{} for _ in range(count)]
    secret = secrets.token_bytes(16)
    with contextlib.ExitStack() as undo:
        listeners = [undo.enter_context(one) for one in _listen(bool(address), ranks[0])]
        port = listeners[-1].getsockname()[1] if address else 0
        store.set(key, json.dumps([listeners[0].getsockname().decode(), port, secret.hex()]))
        while left:
            patience.look(lambda: missing("rank", sorted({rank for rank, _ in left}), len(ranks)))
            ready = wait(listeners, TICK)
            if not ready and store.check([f"{key}/lost"]):
                lost = store.get(f"{key}/lost").decode()
                raise AutoDDPError(f"rank {lost} cannot reach rank {ranks[0]}; see what it says")
            for listener in ready:
                connected, _ = listener.accept()  # type: ignore[union-attr]
                theirs, rank, number = _greeting(connected)
                if secrets.compare_digest(theirs, secret) and (rank, number) in left:
                    left.discard((rank, number))
                    found[number][rank] = connected
                else:
                    connected.close()
    return [dict(sorted(sockets.items())) for sockets in found]


def _listen(far: bool, rank: int) -> Iterator[socket.socket]:
    """Listen at an abstract name, which ends with its process, and for other nodes by TCP."""
    near = socket.socket(socket.AF_UNIX)
    # with its rank, as what is drawn within a job is the same on all ranks
    near.bind(f"\0autoddp-{secrets.token_hex(8)}-{rank}")
    near.listen(socket.SOMAXCONN)
    yield near
    if far:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        backlog = socket.SOMAXCONN
        yield socket.create_server(("", 0), family=family, backlog=backlog, dualstack_ipv6=both)


def _greeting(connected: socket.socket) -> tuple[bytes, int, int]:
    """Read what whoever connects sends first, which ranks do at once; else an empty key."""
    connected.settimeout(GREETING)
    sent = b""
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        sent = connected.recv(HELLO.size)
    connected.settimeout(None)
    return HELLO.unpack(sent) if len(sent) == HELLO.size else (b"", 0, 0)
