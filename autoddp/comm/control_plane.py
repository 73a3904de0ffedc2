"""The control plane: lines between rank 0 and each other rank, unix sockets or TCP between nodes.

The first rank says in the store where it listens, and a key that whoever connects must know. A rank
has four lines: for calls, for collectives, for signals, and for the threads that watch. Forked
children have none: a data loader's worker neither speaks for its rank nor makes it seem alive when
it has ended.
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
from time import monotonic  # a script's is patched
from typing import TYPE_CHECKING

from autoddp.comm.line import Line, Lines
from autoddp.errors import AutoDDPError

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.world import World

KEY = "channel"  # in the store: where rank 0 listens, and what to say there
HELLO = struct.Struct(">16sIB")  # the key, the rank, which of its lines
GREETING = 5.0  # seconds that whoever connects has to say who it is
TICK = 0.05

Sockets = list[dict[int, socket.socket]]  # by which line, and by whom it leads to


class Channel:
    """The lines of this rank, by kind."""

    def __init__(self) -> None:
        self.orders, self.beats, self.calls, self.meetings = (Lines() for _ in range(4))
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
        kinds = [made.orders, made.beats, made.calls, made.meetings][: 4 if who == "rank" else 1]
        ranks, near = list(range(world.world_size)), world.local_world_size == world.world_size
        address = "" if near else world.master_addr
        found = connect(world.rank, ranks, store, KEY, seconds, address, len(kinds), who)
        for lines, sockets in zip(kinds, found, strict=True):
            for rank, connected in sockets.items():
                lines[rank] = Line(rank, connected, seconds)
        return made

    def close(self) -> None:
        """Close all lines; a second call does nothing."""
        for lines in (self.orders, self.beats, self.calls, self.meetings):
            lines.close()


def connect(
    rank: int,
    ranks: list[int],
    store: Store,
    key: str,
    seconds: float = 60.0,
    address: str = "",
    count: int = 1,
    who: str = "rank",
) -> Sockets:
    """Connect the first of `ranks` with each of the others; all of them call this.

    Args:
        rank: The rank that calls.
        ranks: Those that are to be connected.
        store: Where the first one says, under `key`, where it listens.
        key: The name of that.
        seconds: Time in which all must come.
        address: That of the first for ranks on other nodes, if there are any.
        count: The number of sockets to each.
        who: The word for a rank.

    Returns:
        By its number, the socket to each other rank on the first, that to the first on another one.

    Raises:
        AutoDDPError: A rank does not come, or does not reach the first.
    """
    if rank == ranks[0]:
        return _admit(ranks, store, key, seconds, address, count, who)
    try:
        store.wait([key], timedelta(seconds=seconds))
    except RuntimeError:  # torch's DistStoreError
        raise AutoDDPError(
            f"{who} {ranks[0]} came, but did not say within {seconds:.0f} s where it listens; "
            "lost, or held up"
        ) from None
    where, port, secret = json.loads(store.get(key))
    try:
        made = [_dial(where, address, port, min(seconds, 60.0)) for _ in range(count)]
        for number, call in enumerate(made):
            call.sendall(HELLO.pack(bytes.fromhex(secret), rank, number))
    except OSError as error:
        store.set(f"{key}/lost", f"{rank}")
        raise AutoDDPError(
            f"{who} {rank} cannot reach {who} {ranks[0]} at {address or 'its name'}:{port} "
            f"({error}); nodes need to reach node 0 at any port, as gloo does"
        ) from None
    return [{ranks[0]: call} for call in made]


def _dial(where: str, address: str, port: int, seconds: float) -> socket.socket:
    """Call by a unix socket, or by TCP where nobody answers to that name: on another node."""
    near = socket.socket(socket.AF_UNIX)
    try:
        near.connect(where)
    except ConnectionRefusedError:
        near.close()
        if not address:
            raise
        return socket.create_connection((address, port), seconds)
    return near


def _admit(
    ranks: list[int],
    store: Store,
    key: str,
    seconds: float,
    address: str,
    count: int,
    who: str,
) -> Sockets:
    """Wait, on the first rank, for all sockets of all others; drop strangers."""
    missing = {(rank, number) for rank in ranks[1:] for number in range(count)}
    found: Sockets = [{} for _ in range(count)]
    secret, deadline = secrets.token_bytes(16), monotonic() + seconds
    with contextlib.ExitStack() as undo:
        doors = [undo.enter_context(door) for door in _doors(bool(address), ranks[0])]
        port = doors[-1].getsockname()[1] if address else 0
        store.set(key, json.dumps([doors[0].getsockname().decode(), port, secret.hex()]))
        while missing:
            if monotonic() > deadline:
                silent = sorted({f"{who} {rank}" for rank, _ in missing})
                raise AutoDDPError(
                    f"{', '.join(silent)} came, but did not call {who} {ranks[0]} "
                    f"within {seconds:.0f} s; lost, or held up"
                )
            ready = wait(doors, TICK)
            if not ready and store.check([f"{key}/lost"]):
                lost = store.get(f"{key}/lost").decode()
                raise AutoDDPError(f"{who} {lost} cannot reach {who} {ranks[0]}; see what it says")
            for door in ready:
                caller, _ = door.accept()  # type: ignore[union-attr]
                said = _greeting(caller)
                theirs, rank, number = HELLO.unpack(said) if said else (b"", 0, 0)
                if secrets.compare_digest(theirs, secret) and (rank, number) in missing:
                    missing.discard((rank, number))
                    found[number][rank] = caller
                else:
                    caller.close()
    return [dict(sorted(sockets.items())) for sockets in found]


def _doors(far: bool, rank: int) -> Iterator[socket.socket]:
    """Listen by a name that goes with its listener, and for other nodes at all addresses."""
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


def _greeting(caller: socket.socket) -> bytes:
    """Read what a caller says first, which ranks do at once; return nothing if it is too short."""
    caller.settimeout(GREETING)
    said = b""
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        said = caller.recv(HELLO.size)
    caller.settimeout(None)
    return said if len(said) == HELLO.size else b""
