"""Launchers' variables become a `World`, or an error of one line."""

from __future__ import annotations

import pytest

from autoddp.comm.place import Place
from autoddp.comm.world import ADDED, World, hide
from autoddp.errors import BadInput

FULL = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def test_torchruns_variables():
    world = World.read(FULL | {"GROUP_RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert world == World(3, 4, 1, 2, 1, "node0", 29500, agent_store=True)


def test_one_process_is_the_default():
    assert World() == World(0, 1, 0, 1, 0, "localhost", 0, agent_store=False)


@pytest.mark.parametrize(
    ("environ", "rank"), [({}, 0), ({"RANK": "3"}, 0), ({"WORLD_SIZE": "2"}, 0), (FULL, 3)]
)
def test_a_launchers_variables_give_the_rank(monkeypatch, environ, rank):
    with monkeypatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        assert Place().find().rank == rank


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MASTER_ADDR": None, "LOCAL_RANK": None}, r"^LOCAL_RANK, MASTER_ADDR not set, though "),
        ({"RANK": "x"}, r"^RANK is 'x', which is no whole number from 0 on; start the"),
        ({"WORLD_SIZE": "9" * 20}, r"^WORLD_SIZE is '9{20}', which is no whole number from 0 on"),
        ({"RANK": "4"}, r"^RANK 4, WORLD_SIZE 4, LOCAL_RANK 1, .* contradict each other; start"),
        ({"MASTER_PORT": "0"}, r"^MASTER_PORT is 0; a port is from 1 to 65535"),
        ({"MASTER_ADDR": "10.0.0.1 "}, r"^MASTER_ADDR is '10.0.0.1 ', which is no address"),
    ],
)
def test_wrong_variables_raise(change, message):
    environ = {k: v for k, v in (FULL | change).items() if v is not None}
    with pytest.raises(BadInput, match=message):
        World.read(environ)


def test_hide_takes_a_launchers_variables_out_and_returns_them():
    environ = dict.fromkeys(ADDED, "1") | {"PATH": "/bin", "OMP_NUM_THREADS": "1"}
    assert hide(environ) == dict.fromkeys(ADDED, "1")
    assert environ == {"PATH": "/bin", "OMP_NUM_THREADS": "1"}
    assert hide(environ) == {}
    kept = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    assert hide(environ | kept | FULL) == FULL, "what the user has set, the backend is to find"
