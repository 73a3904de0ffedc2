"""Checks of the master's address and port, and the network interface that leads to it."""

from __future__ import annotations

import fcntl
import socket
import struct
import time
from typing import TYPE_CHECKING

from autoddp.errors import BadInput

if TYPE_CHECKING:
    from autoddp.comm.timeout import Timeout

VALIDATE = struct.pack("<BI", 0, 0x3C85F7CE)  # the first bytes that a client of TCPStore sends
NONCE = b"\r\n\r\n"  # a store echoes it, and a server that waits for lines gets some
PING = bytes([13])
LONGEST = 4096  # bytes of an answer
ANSWER = 3.0  # seconds
AGAIN = 0.5  # seconds until an address is tried once more
SIOCGIFADDR = 0x8915  # linux: the IPv4 address of an interface


def resolve(host: str) -> None:
    """Check that this machine can resolve the master's name.

    Raises:
        BadInput: It cannot.
    """
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        raise BadInput(
            f"--master-addr is {host}, which this machine cannot resolve; give an address that "
            "every node can reach, and its port by --master-port"
        ) from None


def check_free(port: int, name: str = "--master-port") -> None:
    """Check that this node can listen on `port`, which `name` gives.

    Raises:
        BadInput: Another process listens there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise BadInput(
                f"{name} is {port}, which cannot be used ({error.strerror}); "
                "give a free port, the same one on every node"
            ) from None


def await_store(host: str, port: int, timeout: Timeout, whom: str) -> None:
    """Wait until node 0's store answers at this address; `whom` describes it in messages.

    Torch's own client would wait for half an hour for a server that is none.

    Raises:
        BadInput: Something else answers, such as an HTTP server.
        AutoDDPError: Nobody does in time.
    """
    while not (found := _answer(host, port)).startswith(NONCE):
        if found and not NONCE.startswith(found):
            raise BadInput(
                f"--master-port is {port}, where {host} answers {found.splitlines()[0]!r}, which "
                "is no node 0 of a job; give the port that node 0 was started with"
            )
        timeout.check(lambda: f"{whom} at {host}:{port}")
        time.sleep(AGAIN)


def _answer(host: str, port: int) -> bytes:
    """Return the server's answer to the first bytes of a TCPStore's client; empty for none."""
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
