"""The interface to the master, and what is wrong with an address or a port."""

from __future__ import annotations

import os
import socket

import pytest

from autoddp.comm.place import HERE
from autoddp.comm.world import World
from autoddp.errors import BadInput
from autoddp.process.joining import set_interface
from autoddp.process.network import check_free, interface_to, resolve


def test_the_loopback_routes_to_itself():
    assert interface_to("127.0.0.1") == "lo"
    assert interface_to("localhost") == "lo"


def test_a_host_without_a_route_has_none():
    assert interface_to("no.such.host.invalid") is None


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


@pytest.mark.parametrize(
    ("local", "mine", "want"),
    [(2, None, None), (1, None, "=lo"), (1, "ib0", "ib0")],
    ids=["one node", "two nodes", "the user's own"],
)
def test_nccl_is_given_the_one_interface_by_its_whole_name(monkeypatch, local, mine, want):
    """Without the sign it would take each whose name begins so."""
    with monkeypatch.context() as patched:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            patched.setenv(name, "")  # put back whatever comes
            patched.delenv(name)
        if mine is not None:
            patched.setenv("NCCL_SOCKET_IFNAME", mine)
        patched.setattr(HERE, "given", {})
        set_interface(World(0, 2, 0, local, master_addr="127.0.0.1"))
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert os.environ.get("NCCL_SOCKET_IFNAME") == want
