"""The ranks' collectives, against the plain computation on what all of them hold."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

from autoddp import torch_internals
from autoddp.comm.group import MAX, Group
from autoddp.comm.world import World
from autoddp.launch.rendezvous import HOST, listen
from tests.support.ranks import run_ranks

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex128)


def reduces(group):
    answers = []
    for dtype in DTYPES:
        x = torch.arange(6).to(dtype) + group.rank
        group.all_reduce(x)
        answers.append(
            torch.equal(x, sum(torch.arange(6).to(dtype) + r for r in range(group.size)))
        )
    return answers


@pytest.mark.parametrize("nproc", [1, 2, 3])
def test_all_reduce(nproc):
    assert run_ranks(reduces, nproc) == [[True] * len(DTYPES)] * nproc


def joins(group, port):
    found = []
    for _ in range(2):
        again = Group.join(World(group.rank, 2, group.rank, 2, 0, HOST, port, agent_store=True))
        x = torch.tensor([group.rank + 1.0])
        again.all_reduce(x)
        found += [x.item(), again.store.check([f"left/{group.rank}"])]
        again.store.set(f"left/{group.rank}", "by the first job")
        again.channel.close()
    return found


def test_jobs_meet_at_one_store_one_after_the_other():
    store = torch_internals.store_behind(listen())
    assert run_ranks(joins, 2, store.port) == [[3.0, False, 3.0, False]] * 2


def gathers(group):
    answers = []
    for dtype in (*DTYPES, torch.bool, torch.float16):
        for x in (torch.arange(6), torch.arange(6).view(2, 3).t(), torch.empty(0, 3)):
            mine = (x + group.rank).to(dtype)
            want = torch.stack([(x + r).to(dtype) for r in range(group.size)])
            got = group.all_gather(mine)
            answers.append(torch.equal(got, want) and got.dtype == dtype)
    got = group.all_gather(torch.tensor(group.rank))
    return all(answers) and got.tolist() == list(range(group.size))


@pytest.mark.parametrize("nproc", [1, 2, 3])
def test_all_gather_of_any_dtype_and_layout(nproc):
    assert run_ranks(gathers, nproc) == [True] * nproc


def decides(group):
    return (
        group.agree(True),
        group.agree(group.rank == 0),
        group.all_reduce(torch.tensor([group.rank]), MAX).item(),
    )


def test_decisions_agree():
    assert run_ranks(decides, 3) == [(True, False, 2)] * 3


def hidden(group):
    """The script's own look at torch.distributed."""
    before = dist.is_initialized()
    x = torch.ones(2)
    pending = group.start_all_reduce(x)
    pending.wait()
    return before, dist.is_initialized(), x.tolist()


def test_the_script_sees_no_group():
    assert run_ranks(hidden, 2) == [(False, False, [2.0, 2.0])] * 2


def test_join_by_an_address(tmp_path):
    """A store that rank 0 hosts, on a port that nobody has told us is free until it is."""
    with_port = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    world = World(0, 1, 0, 1, 0, "localhost", with_port.port, agent_store=True)
    done = []

    def join():
        group = Group.join(world)
        done.append(group.agree(True))
        dist.destroy_process_group(group.pg)

    thread = threading.Thread(target=join)
    thread.start()
    thread.join(30)
    assert done == [True]
