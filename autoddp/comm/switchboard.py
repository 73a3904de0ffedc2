"""How ranks connect: rank 0 says in the store where it listens, and each has a door on its node."""

from __future__ import annotations

import contextlib
import json
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from autoddp.comm.line import Line
from autoddp.comm.sockets import far, near
from autoddp.errors import AutoDDPError

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.world import World

KEY = "channel"  # in the store: where rank 0 listens, and what to say there
HELLO = struct.Struct(">16sIB")  # the token, the rank, the line
GREETING = 5.0  # seconds that whoever connects has to say who it is


class Switchboard(contextlib.ExitStack):
    """The doors of one rank, or of a node where `who` says so, while lines are made."""

    def __init__(self, world: World, store: Store, seconds: float, who: str) -> None:
        super().__init__()
        self.world, self.seconds, self.who = world, seconds, who
        if world.rank:
            self.where, self.port, token = json.loads(_said(store, seconds, who))
            self.token = bytes.fromhex(token)
            self.doors = [self.enter_context(near(f"{self.where}/{world.rank}"))]
            return
        self.token = secrets.token_bytes(16)
        self.where = f"\0autoddp-{secrets.token_hex(8)}"  # no file: it is gone with its listener
        self.doors = [self.enter_context(near(self.where))]
        if world.local_world_size < world.world_size:
            self.doors.append(self.enter_context(far()))
        self.port = self.doors[1].getsockname()[1] if self.doors[1:] else 0
        store.set(KEY, json.dumps([self.where, self.port, self.token.hex()]))

    def call(self, rank: int, number: int) -> Line:
        """Make this rank's line of that number to rank 0, or to another one on its node."""
        connected = self._dial(rank)
        connected.sendall(HELLO.pack(self.token, self.world.rank, number))
        return Line(rank, connected, self.seconds)

    def admit(self, ranks: Iterable[int], numbers: Iterable[int]) -> dict[int, dict[int, Line]]:
        """Wait for lines of these numbers from all these ranks; return them by number and rank."""
        made: dict[int, dict[int, Line]] = {number: {} for number in numbers}
        missing = {(rank, number) for rank in ranks for number in made}
        for rank, number, connected in self._arrivals(missing):
            made[number][rank] = Line(rank, connected, self.seconds)
        return {number: dict(sorted(lines.items())) for number, lines in made.items()}

    def _dial(self, rank: int) -> socket.socket:
        """Connect by a unix socket; to rank 0 by TCP where nobody answers to that name."""
        local = socket.socket(socket.AF_UNIX)
        try:
            local.connect(f"{self.where}/{rank}" if rank else self.where)
            return local
        except ConnectionRefusedError:
            local.close()
            if rank:
                raise
        address = self.world.master_addr
        try:
            return socket.create_connection((address, self.port), min(self.seconds, 60))
        except OSError as error:
            raise AutoDDPError(
                f"{self.who} {self.world.rank} cannot reach {self.who} 0 at {address}:{self.port} "
                f"({error}); nodes need to reach node 0 at any port, as gloo does"
            ) from None

    def _arrivals(self, missing: set[tuple[int, int]]) -> Iterator[tuple[int, int, socket.socket]]:
        """Yield rank, line and socket of each caller that knows the token; drop strangers."""
        deadline, poller = time.monotonic() + self.seconds, select.poll()
        known = {door.fileno(): door for door in self.doors}
        for number in known:
            poller.register(number, select.POLLIN)
        while missing:
            left = deadline - time.monotonic()
            if left <= 0:
                silent = sorted({f"{self.who} {rank}" for rank, _ in missing})
                raise AutoDDPError(
                    f"{', '.join(silent)} came, but did not call {self.who} {self.world.rank} "
                    f"within {self.seconds:.0f} s; lost, or held up"
                )
            for number, _ in poller.poll(left * 1000):
                caller, _ = known[number].accept()
                said = _greeting(caller)
                secret, rank, line = HELLO.unpack(said) if len(said) == HELLO.size else (b"", 0, 0)
                if not secrets.compare_digest(secret, self.token):
                    caller.close()
                    continue
                missing.discard((rank, line))
                yield rank, line, caller


def _said(store: Store, seconds: float, who: str) -> bytes:
    try:
        store.wait([KEY], timedelta(seconds=seconds))
    except RuntimeError:  # torch's DistStoreError
        raise AutoDDPError(
            f"{who} 0 came, but did not say within {seconds:.0f} s where it listens; "
            "lost, or held up"
        ) from None
    return store.get(KEY)


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
