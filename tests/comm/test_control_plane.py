"""The lines between ranks: who may come, what arrives, what becomes of them when a process ends."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest
import torch.distributed as dist

from autoddp.comm import timeout
from autoddp.comm.control_plane import KEY, Channel
from autoddp.comm.line import Line
from autoddp.comm.timeout import Timeout
from autoddp.comm.world import World
from autoddp.errors import AutoDDPError, RankEnded


@pytest.fixture
def pair():
    """Two ends of one line."""
    ends = [Line(n, end) for n, end in enumerate(socket.socketpair(), 1)]
    yield ends
    for end in ends:
        end.close()


def test_who_has_ended_says_nothing_more_and_nobody_dies_of_it(pair):
    pair[0].send(b"last")
    pair[0].close()
    pair[1].send(b"in vain")
    assert pair[1].read() == b"last"
    with pytest.raises(RankEnded, match="rank 2 has ended"):
        pair[1].read()


def _meet(store, far=False):
    """Two ranks in two threads; `far`: on two nodes."""
    made = {}

    def be(rank):
        world = World(rank, 2, 0 if far else rank, 1 if far else 2, master_addr="localhost")
        made[rank] = Channel.between(world, store, Timeout(20))

    threads = [threading.Thread(target=be, args=(rank,)) for rank in (0, 1)]
    threads[0].start()
    return threads, json.loads(store.get(f"{KEY}/0"))[0], made


@pytest.mark.parametrize("far", [False, True])
def test_strangers_are_dropped(tmp_path, far):
    threads, where, made = _meet(dist.FileStore(str(tmp_path / "store"), 2), far)
    family, address = (socket.AF_INET, ("localhost", where)) if far else (socket.AF_UNIX, where)
    strangers = [socket.socket(family) for _ in range(3)]
    for stranger in strangers:
        stranger.connect(address)
    strangers[0].send(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    strangers[1].send(b"short")
    strangers[1].shutdown(socket.SHUT_WR)
    strangers[2].close()
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert [list(made[rank].orders) for rank in (0, 1)] == [[1], [0]]
    kind = socket.AF_INET6 if far and socket.has_dualstack_ipv6() else family
    assert made[0].calls[1].socket.family == kind
    made[0].calls[1].send(b"welcome")
    assert made[1].calls[0].read() == b"welcome"
    for stranger in strangers[:2]:
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()
    for one in made.values():
        one.close()


def test_a_node_that_cannot_be_reached_is_told(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 2)
    with socket.create_server(("", 0)) as closed:
        port = closed.getsockname()[1]
    store.set(f"{KEY}/0", json.dumps([port, "00" * 16]))
    world = World(1, 2, 0, 1, master_addr="localhost")
    with pytest.raises(AutoDDPError, match=f"rank 1 cannot reach rank 0 at localhost:{port}"):
        Channel.between(world, store, Timeout(5))


def test_rank_0_says_which_ranks_have_not_come(tmp_path, monkeypatch):
    monkeypatch.setattr(timeout, "EVERY", 0.1)
    store, said = dist.FileStore(str(tmp_path / "store"), 3), []
    with pytest.raises(AutoDDPError, match="in vain for ranks 1, 2 of 3"):
        Channel.between(World(0, 3, 0, 3), store, Timeout(0.5, said.append))
    assert said[0].startswith("waiting for ranks 1, 2 of 3 since ")
