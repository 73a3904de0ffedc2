"""Ports for the tests' jobs."""

from __future__ import annotations

import secrets
import socket

# The system gives whoever asks for any port one from 32768 on: so no other process, a rank of a
# test that runs beside this one say, is given a port between its choice and its use.
LOWEST, HIGHEST = 10_000, 32_000


def free_port() -> int:
    """Choose a port on which nobody listens, and which the system gives to nobody."""
    while True:
        port = LOWEST + secrets.randbelow(HIGHEST - LOWEST)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
