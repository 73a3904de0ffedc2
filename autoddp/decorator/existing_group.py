"""A call where the script's process group exists already, like in a worker of Ray Train.

The ranks of the call meet over the store of that group. The group is out of sight for the time of
the call, since the function sees one process, and is there again after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import Store

from autoddp.comm.world import World
from autoddp.errors import BadInput
from autoddp.process import streams
from autoddp.process.streams import Logs
from autoddp.torch_internals import another_connection, default_store, prefixed

LAST = timedelta(minutes=2)  # in which all ranks leave the call, once one has


class Meeting:
    """The point where the ranks of one call meet and part, on a store."""

    def __init__(self, world: World, store: Store) -> None:
        self.world, self.store = world, store

    def tell(self, word: str) -> None:
        """Say that this rank leaves the call, and after a return wait until all others do.

        The others may still need this rank until then.

        Args:
            word: "returned" or "raised".
        """
        self.store.set(f"left/{self.world.rank}", word)
        if word == "returned":
            self.store.wait([f"left/{rank}" for rank in range(self.world.world_size)], LAST)


@contextmanager
def set_aside(world: World, logs: Logs) -> Iterator[Meeting]:
    """Put the script's process group out of sight inside; ranks above 0 print to their logs there.

    Raises:
        BadInput: That group is of other ranks than the job.
    """
    theirs, size = dist.group.WORLD, dist.get_world_size()
    if (dist.get_rank(), size) != (world.rank, world.world_size):
        raise BadInput(
            f"RANK is {world.rank} of WORLD_SIZE {world.world_size}, but the script has "
            f"initialised a process group in which this is rank {dist.get_rank()} of {size}; "
            "make it of all ranks"
        )
    store = another_connection(default_store())
    call = store.add(f"autoddp/calls/{world.rank}", 1)
    dist.group.WORLD = None  # the setter is on the metaclass
    try:
        with to_log(world.rank, logs):
            yield Meeting(world, prefixed(f"autoddp/call/{call}", store))
    finally:
        dist.group.WORLD = theirs


@contextmanager
def to_log(rank: int, logs: Logs) -> Iterator[None]:
    """Send all that a rank above 0 prints inside to its log."""
    if not rank:
        yield
        return
    streams.flush()
    kept = [os.dup(number) for number in range(3)]
    try:
        logs.make()
        streams.redirect(logs.of(rank))
        yield
    finally:
        streams.flush()
        for number, ours in enumerate(kept):
            os.dup2(ours, number)
            os.close(ours)
        logs.remove()
