"""The interface to the master, and what is wrong with an address or a port."""

from __future__ import annotations

import socket

import pytest

from autoddp.errors import BadInput
from autoddp.process.network import check_free, resolve


def test_addresses_are_checked():
    resolve("127.0.0.1")
    with pytest.raises(BadInput, match=r"^--master-addr is no\.such\.host\.invalid, which this"):
        resolve("no.such.host.invalid")


def test_ports_are_checked():
    with socket.socket() as other:
        other.bind(("", 0))
        port = other.getsockname()[1]
        other.listen()
        with pytest.raises(BadInput, match=f"^--master-port is {port}, which cannot be used"):
            check_free(port)
    check_free(port)
