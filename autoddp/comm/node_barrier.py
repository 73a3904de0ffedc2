"""A barrier of the ranks of a node, in memory that they share.

It has a POSIX semaphore (`sem_overview(7)`) for each ordered pair of ranks, which also orders, on
every processor, what is written before a post and read after a wait. Once a rank is interrupted
while it waits, or finds that another one has ended, the barrier is broken for all of them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from time import time_ns  # a script's is patched

import torch.distributed as dist

from autoddp.comm.line import Lines

SEMAPHORE = 64  # bytes for a sem_t, which has 32, so that no two share a line of the cache
LOOK = 0.2  # seconds after which a rank that waits checks whether the others are there
SPINS = 400  # tries of a semaphore, a fifth of a millisecond, before this process sleeps
BROKEN = "a rank of this node has ended, or was interrupted while it waited for the others"


class Timespec(ctypes.Structure):
    """The time until which a call of the C library waits."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class NodeBarrier:
    """One rank's view of the semaphores.

    Args:
        rank: The number of this rank.
        count: The number of ranks.
        memory: The memory, of which the barrier takes the first `room(count)` bytes.
        lines: Connections between rank 0 and each other rank, which close when a rank ends.
    """

    def __init__(self, rank: int, count: int, memory: mmap.mmap, lines: Lines) -> None:
        self._memory, self._broken, self._lines = memory, SEMAPHORE * count * count, lines
        # rank 0 comes last: once it has passed, each rank has posted to each other one
        self._others = [other for other in reversed(range(count)) if other != rank]
        library, self._quick = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None)
        self._sleep = library.sem_timedwait
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory))

        def semaphore(posts: int, waits: int) -> ctypes.c_void_p:
            return ctypes.c_void_p(first + SEMAPHORE * (posts * count + waits))

        self._to = [semaphore(rank, other) for other in range(count)]
        self._from = [semaphore(other, rank) for other in range(count)]
        if rank == 0:
            for at in range(count * count):
                library.sem_init(semaphore(0, at), 1, 0)

    def wait(self) -> None:
        """Wait until all ranks are here.

        Raises:
            DistNetworkError: The barrier is broken.
        """
        if self._memory[self._broken]:
            raise dist.DistNetworkError(BROKEN)
        try:
            for other in self._others:
                self._quick.sem_post(self._to[other])
            for other in self._others:
                self._await(other)
        except BaseException:
            self._memory[self._broken] = 1  # from now on ranks may be apart
            raise

    def _await(self, other: int) -> None:
        semaphore, trywait = self._from[other], self._quick.sem_trywait
        for _ in range(SPINS):
            if trywait(semaphore) == 0:
                return
            os.sched_yield()  # the other rank may wait for this core
        line = self._lines.get(other) or self._lines[0]
        while True:
            until = Timespec(*divmod(time_ns() + int(LOOK * 1e9), 10**9))
            if self._sleep(semaphore, ctypes.byref(until)) == 0:
                return
            if self._memory[self._broken] or line.has_ended():
                if trywait(semaphore) == 0:  # the other rank has posted before
                    return
                raise dist.DistNetworkError(BROKEN)


def room(many: int) -> int:
    """Return the bytes that the barrier of so many ranks needs."""
    return SEMAPHORE * (many * many + 1)
