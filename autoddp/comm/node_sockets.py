"""Unix sockets between the first of some ranks of a node and its others, which pass descriptors.

They admit processes of the same user that know the token, which the first puts into the store.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from autoddp.errors import AutoDDPError

if TYPE_CHECKING:
    from torch.distributed import Store

HELLO = struct.Struct(">16sI")  # the token, the rank
PATIENCE = 60.0  # seconds for all ranks of a node to come
TICK = 0.05
CREDENTIALS = struct.Struct("3i")


def connect(rank: int, ranks: list[int], store: Store, key: str) -> dict[int, socket.socket] | None:
    """Connect the first of `ranks` with each of the others; all of them call this.

    Returns:
        On the first a socket to each other rank by its number, on another one that to the first;
        None where a rank does not reach the first, on both, or on the first where any does not.
    """
    first = ranks[0]
    if rank != first:
        where, token = json.loads(store.get(key))
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connected.connect(where)
            connected.sendall(HELLO.pack(bytes.fromhex(token), rank))
        except OSError:
            connected.close()
            store.set(f"{key}/{rank}", "")  # a container of its own: the name is not known there
            return None
        return {first: connected}
    # with its rank, as what is drawn within a job is the same on all ranks
    where, secret = f"\0autoddp-{secrets.token_hex(8)}-{rank}", secrets.token_bytes(16)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(where)
        door.listen(socket.SOMAXCONN)
        store.set(key, json.dumps([where, secret.hex()]))
        found = _arrivals(door, secret, set(ranks[1:]), lambda r: store.check([f"{key}/{r}"]))
    if len(found) < len(ranks) - 1:
        for connected in found.values():
            connected.close()
        return None
    return found


def _arrivals(
    door: socket.socket, token: bytes, missing: set[int], lost: Callable[[int], bool]
) -> dict[int, socket.socket]:
    found: dict[int, socket.socket] = {}
    deadline, poll = time.monotonic() + PATIENCE, select.poll()
    poll.register(door, select.POLLIN)  # `select` ends at descriptor 1023
    while missing:
        if not poll.poll(TICK * 1000):
            missing -= {rank for rank in missing if lost(rank)}
            if missing and time.monotonic() > deadline:
                raise AutoDDPError(
                    f"rank {min(missing)} did not come to its node's first within {PATIENCE:.0f} s"
                )
            continue
        caller, _ = door.accept()
        caller.settimeout(PATIENCE)
        options = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        said = caller.recv(HELLO.size) if CREDENTIALS.unpack(options)[1] == os.getuid() else b""
        caller.settimeout(None)
        secret, rank = HELLO.unpack(said) if len(said) == HELLO.size else (b"", -1)
        if secrets.compare_digest(secret, token) and rank in missing:
            missing.discard(rank)
            found[rank] = caller
        else:
            caller.close()
    return found
