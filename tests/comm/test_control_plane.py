"""The lines between ranks: who may come, what arrives, what becomes of them when a process ends."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import threading
import time

import pytest
import torch.distributed as dist

from autoddp.comm import patience
from autoddp.comm.control_plane import KEY, Channel
from autoddp.comm.line import Line
from autoddp.comm.patience import Patience
from autoddp.comm.rpc import When
from autoddp.comm.world import World
from autoddp.errors import AutoDDPError, RankEnded
from tests.effects.outward import raised
from tests.support.ranks import _rank, run_ranks


@pytest.fixture
def pair():
    """Two ends of one line."""
    ends = [Line(n, end) for n, end in enumerate(socket.socketpair(), 1)]
    yield ends
    for end in ends:
        end.close()


def test_messages_arrive_whole_and_in_order(pair):
    sent = [b"x" * size for size in (0, 1, 7, 8, 9, 1 << 14, 1 << 20, 3)]
    thread = threading.Thread(target=lambda: [pair[0].send(message) for message in sent])
    thread.start()
    assert [pair[1].read() for _ in sent] == sent
    thread.join()


def test_who_has_ended_says_nothing_more_and_nobody_dies_of_it(pair):
    pair[0].send(b"last")
    pair[0].close()
    pair[1].send(b"in vain")
    assert pair[1].read() == b"last"
    with pytest.raises(RankEnded, match="rank 2 has ended"):
        pair[1].read()


def test_news_are_the_main_threads(pair):
    """Another thread that the kernel woke for them would take what waits for the main one, too."""
    number, before = signal.SIGURG, signal.signal(signal.SIGURG, lambda *_: None)
    ready, over = threading.Event(), threading.Event()

    def other():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        ready.set()
        over.wait()

    thread = threading.Thread(target=other)
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        thread.start()
        ready.wait()
        pair[1].announce(number)
        pair[0].send(b"news")
        time.sleep(0.3)  # in which the other thread could have taken it
        assert number in signal.sigpending()
    finally:
        over.set()
        thread.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        signal.signal(number, before)


def _meet(store, far=False):
    """Two ranks in two threads; `far`: rank 1 finds no unix socket, as on another node."""
    made = {}

    def be(rank):
        world = World(rank, 2, 0 if far else rank, 1 if far else 2, master_addr="localhost")
        made[rank] = Channel.between(world, store, Patience(20))

    threads = [threading.Thread(target=be, args=(rank,)) for rank in (0, 1)]
    threads[0].start()
    told = json.loads(store.get(KEY))
    if far:
        store.set(KEY, json.dumps(["\0nobody", *told[1:]]))
    return threads, told, made


@pytest.mark.parametrize("far", [False, True])
def test_strangers_are_dropped(tmp_path, far):
    threads, (where, port, _), made = _meet(dist.FileStore(str(tmp_path / "store"), 2), far)
    family, address = (socket.AF_INET, ("localhost", port)) if far else (socket.AF_UNIX, where)
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
    store.set(KEY, json.dumps(["\0nobody", port, "00" * 16]))
    world = World(1, 2, 0, 1, master_addr="localhost")
    with pytest.raises(AutoDDPError, match=f"rank 1 cannot reach rank 0 at localhost:{port}"):
        Channel.between(world, store, Patience(5))


def test_rank_0_says_which_ranks_have_not_come(tmp_path, monkeypatch):
    monkeypatch.setattr(patience, "EVERY", 0.1)
    store, said = dist.FileStore(str(tmp_path / "store"), 3), []
    with pytest.raises(AutoDDPError, match="in vain for ranks 1, 2 of 3"):
        Channel.between(World(0, 3, 0, 3), store, Patience(0.5, said.append))
    assert said[0].startswith("waiting for ranks 1, 2 of 3 since ")


def test_children_have_no_lines():
    def rank(group):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(
                writer,
                repr([line.socket.fileno() for line in group.channel.calls.values()]).encode(),
            )
            os._exit(0)
        inside = os.read(reader, 100)
        return inside, group.call("a", lambda: 1)

    assert run_ranks(rank, 2) == [(b"[-1]", 1)] * 2


@pytest.mark.parametrize("meet", [False, True])
def test_a_rank_that_waits_for_one_that_has_ended_says_so(tmp_path, meet):
    """Also where a process lives on that the ended rank had forked."""

    def when(n):
        return When.ALL_HERE if meet and n else When.NOW

    reader, writer = os.pipe()

    def act(group):
        if group.rank == 0:
            group.call("a", lambda: 1)
            if os.fork() == 0:
                os.close(writer)
                os.read(reader, 1)
            os._exit(0)
        said = raised(lambda: [group.call("a", lambda: 1, when=when(n)) for n in range(3)])
        (tmp_path / "said").write_text(" ".join(said))
        os._exit(0)

    context = multiprocessing.get_context("fork")
    path = str(tmp_path / "store")
    ranks = [context.Process(target=_rank, args=(act, r, 2, path, (), None)) for r in (0, 1)]
    began = time.monotonic()
    for one in ranks:
        one.start()
    ranks[1].join(30)
    os.close(writer)
    os.close(reader)
    ranks[0].join(30)
    assert (tmp_path / "said").read_text().startswith("RankEnded rank 0 has ended")
    assert time.monotonic() - began < 30
