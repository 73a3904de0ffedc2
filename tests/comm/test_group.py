"""The ranks' collectives, against the plain computation on what all of them hold."""

from __future__ import annotations

import torch
import torch.distributed as dist

from autoddp import torch_internals
from autoddp.comm.group import Group
from autoddp.comm.world import World
from autoddp.launch.rendezvous import HOST, listen
from tests.support.ranks import run_ranks


def joins(group, port):
    found = []
    for _ in range(2):
        world = World(group.rank, 2, group.rank, 2, 0, HOST, port, agent_store=True)
        again = Group.join(world, "0", lambda channel: ("gloo", None), print)
        x = torch.tensor([group.rank + 1.0])
        again.all_reduce(x)
        found += [x.item(), again.store.check([f"left/{group.rank}"])]
        again.store.set(f"left/{group.rank}", "by the first job")
        again.channel.close()
    return found


def test_jobs_meet_at_one_store_one_after_the_other():
    store = torch_internals.store_behind(listen())
    assert run_ranks(joins, 2, store.port) == [[3.0, False, 3.0, False]] * 2


def hidden(group):
    """The script's own look at torch.distributed."""
    before = dist.is_initialized()
    x = torch.ones(2)
    pending = group.start_all_reduce(x)
    pending.wait()
    return before, dist.is_initialized(), x.tolist()


def test_the_script_sees_no_group():
    assert run_ranks(hidden, 2) == [(False, False, [2.0, 2.0])] * 2
