"""Checks of the master's address and port, and the network interface that leads to it."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import time
from typing import TYPE_CHECKING

from autoddp.comm.world import is_host
from autoddp.errors import BadInput

if TYPE_CHECKING:
    from autoddp.comm.patience import Patience

VALIDATE = struct.pack("<BI", 0, 0x3C85F7CE)  # what a client of TCPStore says first
NONCE = b"\r\n\r\n"  # a store echoes it, and a server that waits for lines gets some
PING = bytes([13])
LONGEST = 4096  # bytes of an answer
ANSWER = 3.0  # seconds
AGAIN = 0.5  # seconds until an address is tried once more
SIOCGIFADDR = 0x8915  # linux: the IPv4 address of an interface


def resolve(host: str) -> None:
    """Check that this machine can resolve the master's name.

    Raises:
        BadInput: The name is no address, or this machine cannot resolve it.
    """
    if not is_host(host):
        raise BadInput(
            f"--master-addr is {host!r}, which is no address; give one that every node can reach"
        )
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        name, colon, port = host.rpartition(":")
        way = f"--master-addr {name} --master-port {port}" if colon and port.isdecimal() else ""
        raise BadInput(
            f"--master-addr is {host}, which this machine cannot resolve ({error.strerror}); "
            f"give {way or 'an address that every node can reach'}"
        ) from None


def is_here(host: str) -> bool:
    """Return whether `host` is an address of this machine."""
    for family, kind, number, _, where in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, number) as probe, contextlib.suppress(OSError):
            probe.bind(where)
            return True
    return False


def check_free(port: int) -> None:
    """Check that this node can listen on `port`.

    Raises:
        BadInput: The number is no port, or another process listens there.
    """
    if not 0 < port < 65536:
        raise BadInput(f"--master-port is {port}; a port is from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise BadInput(
                f"--master-port is {port}, which cannot be used ({error.strerror}); "
                "give a free port, the same one on every node"
            ) from None


def check_node_0(host: str, port: int) -> None:
    """Check that the server at this address, if any answers yet, is the store of node 0.

    Torch's own client would wait for half an hour. The bytes sent are those of its protocol, which
    it keeps since 2.1; silence proves nothing, so only an answer that no store gives is refused.

    Raises:
        BadInput: Something else answers, an HTTP server say.
    """
    _check(_answer(host, port), host, port)


def check_no_node_0(host: str, port: int) -> None:
    """Check that this node can listen on `port`, and that no other one is node 0.

    Raises:
        BadInput: It cannot, or another one is.
    """
    try:
        check_free(port)
        taken = not is_here(host) and has_store(host, port)
    except BadInput:
        if not has_store(host, port):
            raise
        taken = True
    if taken:
        raise BadInput(
            f"--node-rank is 0, but a node 0 is at {host}:{port} already; give this node another "
            "--node-rank, or this job another --master-port"
        )


def await_store(host: str, port: int, patience: Patience, whom: str) -> None:
    """Wait until node 0's store answers at this address; `whom` says for whom that is.

    Raises:
        BadInput: Something else answers.
        AutoDDPError: Nobody does in time.
    """
    while not (said := _answer(host, port)).startswith(NONCE):
        _check(said, host, port)
        patience.look(lambda: f"{whom} at {host}:{port}")
        time.sleep(AGAIN)


def _check(said: bytes, host: str, port: int) -> None:
    """Check what a server has answered; nothing is no answer yet.

    Raises:
        BadInput: No store answers so.
    """
    if said and not NONCE.startswith(said[: len(NONCE)]):
        raise BadInput(
            f"--master-port is {port}, where {host} answers {said.splitlines()[0]!r}, which is no "
            "node 0 of a job; give the port that node 0 was started with"
        )


def has_store(host: str, port: int) -> bool:
    """Return whether a TCPStore listens at this address."""
    return _answer(host, port).startswith(NONCE)


def _answer(host: str, port: int) -> bytes:
    """Return the server's answer to the client of a TCPStore; empty where none comes in time."""
    try:
        with socket.create_connection((host, port), ANSWER) as probe:
            probe.sendall(VALIDATE + PING + NONCE)
            return probe.recv(LONGEST)
    except OSError:
        return b""


def interface_to(host: str) -> str | None:
    """Return the name of the interface that routes to `host`, None where it has no IPv4 route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # UDP: picks a route, sends nothing
        except OSError:
            return None
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(answer[20:24]) == own:
                return name
    return None
