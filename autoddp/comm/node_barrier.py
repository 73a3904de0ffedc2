"""A barrier of the ranks of a node, in memory that they share.

It has a POSIX semaphore (`sem_overview(7)`) for each ordered pair of ranks, which also orders, on
every processor, what is written before a post and read after a wait. A rank holds a lock on a byte
of the memory, which the kernel releases when the rank ends: so those that wait notice.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf  # a script's is patched: that of rank 0's file
from time import monotonic_ns  # a script's is patched

import torch.distributed as dist

SEMAPHORE = 64  # bytes for a sem_t, which has 32, so that no two share a line of the cache
LOOK = 0.2  # seconds after which a rank that waits checks whether the other is there
SPINS = 400  # tries of a semaphore, a fifth of a millisecond, before this process sleeps
MONOTONIC = 1


class Timespec(ctypes.Structure):
    """The time until which a call of the C library waits."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class NodeBarrier:
    """One rank's view of the semaphores.

    Args:
        rank: The number of this rank.
        count: The number of ranks.
        descriptor: The memory's, for the locks.
        memory: The memory, of which the semaphores take the first `room(count)` bytes.
    """

    def __init__(self, rank: int, count: int, descriptor: int, memory: mmap.mmap) -> None:
        self._rank, self._descriptor = rank, descriptor
        self._others = [other for other in range(count) if other != rank]
        library, self._quick = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None)
        self._sleep = library.sem_clockwait  # an AttributeError where a system lacks it
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory))

        def semaphore(posts: int, waits: int) -> ctypes.c_void_p:
            return ctypes.c_void_p(first + SEMAPHORE * (posts * count + waits))

        self._to = [semaphore(rank, other) for other in range(count)]
        self._from = [semaphore(other, rank) for other in range(count)]
        self._gone = False
        if rank == 0:  # the others wait for this rank before they use them
            for at in range(count * count):
                library.sem_init(semaphore(0, at), 1, 0)
        lockf(descriptor, LOCK_EX | LOCK_NB, 1, rank)

    def wait(self) -> None:
        """Wait until all ranks are here.

        Raises:
            DistNetworkError: Another rank has ended, or an exception interrupted an earlier wait,
                after which ranks may be apart.
        """
        if self._gone:
            raise dist.DistNetworkError("this rank has left the barrier of its node")
        try:
            for other in self._others:
                self._quick.sem_post(self._to[other])
            for other in self._others:
                self._await(other)
        except BaseException:
            self.leave()  # others must not wait for a rank that may not come again
            raise

    def leave(self) -> None:
        """Never come again, which the others notice as if this rank had ended."""
        self._gone = True
        lockf(self._descriptor, LOCK_UN, 1, self._rank)

    def _await(self, other: int) -> None:
        semaphore, trywait = self._from[other], self._quick.sem_trywait
        for _ in range(SPINS):
            if trywait(semaphore) == 0:
                return
            os.sched_yield()  # the other rank may wait for this core
        while True:
            until = Timespec(*divmod(monotonic_ns() + int(LOOK * 1e9), 10**9))
            if self._sleep(semaphore, MONOTONIC, ctypes.byref(until)) == 0:
                return
            if not self._is_there(other) and trywait(semaphore):
                raise dist.DistNetworkError(f"rank {other} has ended")

    def _is_there(self, other: int) -> bool:
        try:
            lockf(self._descriptor, LOCK_EX | LOCK_NB, 1, other)
        except OSError:
            return True
        lockf(self._descriptor, LOCK_UN, 1, other)
        return False


def room(many: int) -> int:
    """Return the bytes that the semaphores of so many ranks need."""
    return SEMAPHORE * many * many
