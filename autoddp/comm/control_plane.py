"""The control plane: connections between rank 0 and each other rank.

Rank 0 publishes in the store where it listens, and a key that who connects must send: at a unix
socket if all ranks are on one node, else by TCP. A rank has four connections: for calls, for
collectives, for signals, and for the threads that watch. Forked children have none: a data loader's
worker neither speaks for its rank nor makes it seem alive once it has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
from datetime import timedelta
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from autoddp.comm.line import Line, Lines
from autoddp.comm.timeout import Timeout, missing
from autoddp.errors import AutoDDPError

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.world import World

KEY = "channel"  # in the store, with the number of a kind: the address of rank 0, and the key
HELLO = struct.Struct(">16sI")  # the key, the rank
GREETING = 5.0  # seconds in which whoever connects must have sent that
DIALLED = 60.0  # seconds in which another node must answer
TICK = 0.05  # seconds between two looks at how long the wait is


class Channel:
    """The connections of this rank, by kind."""

    def __init__(self) -> None:
        self.orders, self.beats, self.calls, self.collectives = kinds = [Lines() for _ in range(4)]
        self.kinds = kinds
        os.register_at_fork(after_in_child=self.close)

    @classmethod
    def between(cls, world: World, store: Store, timeout: Timeout) -> Channel:
        """Connect all ranks, each of which calls this."""
        made = cls()
        if world.world_size == 1:
            return made
        ranks, near = list(range(world.world_size)), world.local_world_size == world.world_size
        address = "" if near else world.master_addr
        for number, lines in enumerate(made.kinds):
            found = connect(world.rank, ranks, store, f"{KEY}/{number}", timeout, address)
            lines.update({rank: Line(rank, connected) for rank, connected in found.items()})
        return made

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        for lines in self.kinds:
            for line in list(lines.values()):  # a signal handler may remove one meanwhile
                line.close()


def connect(
    rank: int,
    ranks: list[int],
    store: Store,
    key: str,
    timeout: Timeout,
    address: str = "",
) -> dict[int, socket.socket]:
    """Connect the first of `ranks` with each of the others, all of which call this.

    Args:
        rank: The rank that calls.
        ranks: The ranks to connect.
        store: A store of all of them.
        key: The name in the store under which the first one publishes where it listens.
        timeout: The wait of the first one for the others.
        address: The first one's, for ranks on several nodes; empty if all are on one.

    Returns:
        The sockets to each other rank on the first, that to the first on another one.

    Raises:
        AutoDDPError: A rank does not come in time, or this one does not reach the first.
    """
    if rank == ranks[0]:
        return _accept(ranks, store, key, timeout, bool(address))
    store.wait([key], timedelta(seconds=timeout.seconds))
    where, secret = json.loads(store.get(key))
    try:
        connected = _dial(where, address)
        connected.sendall(HELLO.pack(bytes.fromhex(secret), rank))
    except OSError as error:
        raise AutoDDPError(
            f"rank {rank} cannot reach rank {ranks[0]} at {address}:{where} "
            f"({error}); nodes need to reach node 0 at any port, as gloo does"
        ) from None
    return {ranks[0]: connected}


def _dial(where: Any, address: str) -> socket.socket:
    """Connect to a port of another node, or to a unix socket of this one."""
    if address:
        return socket.create_connection((address, where), DIALLED)
    near = socket.socket(socket.AF_UNIX)
    near.connect(where)
    return near


def _accept(
    ranks: list[int], store: Store, key: str, timeout: Timeout, far: bool
) -> dict[int, socket.socket]:
    """Wait, on the first rank, for all others; drop strangers."""
    found: dict[int, socket.socket] = {}
    secret = secrets.token_bytes(16)
    with _listen(far, ranks[0]) as listener:
        name = listener.getsockname()
        store.set(key, json.dumps([name[1] if far else name.decode(), secret.hex()]))
        while left := [rank for rank in ranks[1:] if rank not in found]:
            timeout.check(lambda: missing("rank", left, len(ranks)))
            if not wait([listener], TICK):
                continue
            connected, _ = listener.accept()
            theirs, rank = _greeting(connected)
            if secrets.compare_digest(theirs, secret) and rank in left:
                found[rank] = connected
            else:
                connected.close()
    return dict(sorted(found.items()))


def _listen(far: bool, rank: int) -> socket.socket:
    """Listen for other nodes by TCP, or at an abstract name, which ends with its process."""
    backlog = socket.SOMAXCONN
    if far:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", 0), family=family, backlog=backlog, dualstack_ipv6=both)
    near = socket.socket(socket.AF_UNIX)
    # with its rank, as what is drawn within a job is the same on all ranks
    near.bind(f"\0autoddp-{secrets.token_hex(8)}-{rank}")
    near.listen(backlog)
    return near


def _greeting(connected: socket.socket) -> tuple[bytes, int]:
    """Read what whoever connects sends first, which ranks do at once; else an empty key."""
    connected.settimeout(GREETING)
    sent = b""
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        sent = connected.recv(HELLO.size)
    connected.settimeout(None)
    return HELLO.unpack(sent) if len(sent) == HELLO.size else (b"", 0)
