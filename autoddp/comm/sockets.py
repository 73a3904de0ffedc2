"""Sockets by which ranks connect: unix sockets on a node, TCP between nodes."""

from __future__ import annotations

import contextlib
import os
import socket


def near(where: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Listen at a unix socket for ranks in this network namespace."""
    door = socket.socket(socket.AF_UNIX, kind)
    door.bind(where)
    door.listen(socket.SOMAXCONN)
    return door


def far() -> socket.socket:
    """Listen at all addresses of this node: ranks elsewhere call where they reach the store."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(
        ("", 0), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=both
    )


def namespace() -> str:
    """Name the network namespace of this process: all in it find its unix sockets by name."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as boot:
        return f"{boot.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"
    return str(os.getpid())  # nobody is known to share it


def address(connected: socket.socket) -> str:
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
