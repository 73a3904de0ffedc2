"""Memory that the ranks of a node share, in which they meet, and add up and gather tensors.

Each rank has a slot there. It writes to its own, meets the others, and reads theirs: nothing
travels. Sums are taken in the order of the ranks, so that all have the same bits.

Ranks meet by a POSIX semaphore for each pair of them (`sem_overview(7)`), which lies in the memory,
too, and orders what is written before a post and read after a wait on every processor. The memory
has no name: nothing is left of it when the last process ends, however that happens. A rank holds a
lock on a byte of it, which the kernel releases when the rank ends: those that wait see that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf  # a script's is patched: that of rank 0's file
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from autoddp.comm.node_sockets import connect

if TYPE_CHECKING:
    from torch.distributed import Store

SLOT = 1 << 20  # bytes of a piece: of larger tensors one piece follows the other
SMALL = 1 << 15  # bytes that each rank adds up itself, which is sooner done than to meet again
SEMAPHORE = 64  # bytes for a sem_t, which has 32, so that no two share a line of the cache
LOOK = 0.2  # seconds after which a rank that waits looks whether the other is there
SPINS = 400  # looks at a semaphore before this process sleeps
MONOTONIC = 1
HERE = b"!"
OPERATIONS: dict[Any, Callable[..., Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}


class Timespec(ctypes.Structure):
    """The time until which a call of the C library waits."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class NodeMemory:
    """One rank's view of the memory, and of the semaphores by which it meets the others.

    All ranks of the node call the same methods, in the same order, with tensors of the same shape;
    two of these serve two threads.

    Args:
        number: The place of this rank among those of its node.
        ranks: The ranks of the node.
        descriptor: Stands for the memory, `size(len(ranks))` bytes; this object closes it.
    """

    def __init__(self, number: int, ranks: list[int], descriptor: int) -> None:
        self.number, self.ranks, self.descriptor = number, ranks, descriptor
        many = len(ranks)
        self._others = [other for other in range(many) if other != number]
        self._map = mmap.mmap(descriptor, size(many))
        self._library, self._quick = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        # by rank: what it waits for from this one, and what this one waits for from it
        self._to = [ctypes.c_void_p(first + SEMAPHORE * (number * many + r)) for r in range(many)]
        self._from = [ctypes.c_void_p(first + SEMAPHORE * (r * many + number)) for r in range(many)]
        self._spins = SPINS if len(os.sched_getaffinity(0)) >= many else 1
        self._half, self._left = 0, False
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._slots = lru_cache(256)(self._slots_of)
        lockf(descriptor, LOCK_EX | LOCK_NB, 1, number)

    def begin(self) -> None:
        """Make the semaphores; the first rank does, before another one has the memory."""
        many = len(self.ranks)
        first = self._to[0].value or 0
        for number in range(many * many):
            self._library.sem_init(ctypes.c_void_p(first + SEMAPHORE * number), 1, 0)

    def __del__(self) -> None:
        os.close(self.descriptor)

    # ---- meeting

    def meet(self) -> None:
        """Wait until all ranks are here; what they wrote before is what is read afterwards.

        Raises:
            DistNetworkError: Another rank has ended, as of a connection that broke; or an exception
                has left an earlier meeting, after which ranks may be apart.
        """
        if self._left:
            raise dist.DistNetworkError("an exception has left a meeting of the ranks")
        self._left = True
        for other in self._others:
            self._quick.sem_post(self._to[other])
        for other in self._others:
            self._await(other)
        self._left = False

    def _await(self, other: int) -> None:
        semaphore, trywait = self._from[other], self._quick.sem_trywait
        for _ in range(self._spins):
            if trywait(semaphore) == 0:
                return
        while True:
            until = Timespec(*divmod(time.monotonic_ns() + int(LOOK * 1e9), 10**9))
            if self._library.sem_clockwait(semaphore, MONOTONIC, ctypes.byref(until)) == 0:
                return
            if not self._is_there(other) and trywait(semaphore):
                raise dist.DistNetworkError(f"rank {self.ranks[other]} has ended")

    def _is_there(self, other: int) -> bool:
        try:
            lockf(self.descriptor, LOCK_EX | LOCK_NB, 1, other)
        except OSError:
            return True
        lockf(self.descriptor, LOCK_UN, 1, other)
        return False

    # ---- tensors

    @torch.no_grad()
    def all_reduce(self, x: Tensor, op: Any, share: int = 1) -> None:
        """Reduce `x`, which is contiguous, in place over the ranks, and divide it by `share`."""
        for piece in _pieces(x):
            if piece.nbytes <= SMALL:
                self._reduce_small(piece, op)
                if share != 1:
                    piece.div_(share)
            else:
                self._reduce(piece, op, share)

    def _reduce_small(self, x: Tensor, op: Any) -> None:
        slots, reduce = self._next(x), OPERATIONS[op]
        slots[self.number].copy_(x)
        self.meet()
        reduce(slots[0], slots[1], out=x)
        for slot in slots[2:]:
            reduce(x, slot, out=x)

    def _reduce(self, x: Tensor, op: Any, share: int) -> None:
        """Reduce one part of `x` here, where the others find it, and take theirs from there."""
        slots, cuts = self._next(x), _cuts(x.numel(), len(self.ranks))
        mine, reduce = cuts[self.number], OPERATIONS[op]
        for other in self._others:
            slots[self.number][cuts[other]].copy_(x[cuts[other]])
        self.meet()
        found = slots[self.number][mine]  # nobody else looks there before all have met again
        parts = [x[mine] if r == self.number else slots[r][mine] for r in range(len(self.ranks))]
        reduce(parts[0], parts[1], out=found)
        for part in parts[2:]:
            reduce(found, part, out=found)
        if share != 1:
            found.div_(share)
        x[mine].copy_(found)
        self.meet()
        for other in self._others:
            x[cuts[other]].copy_(slots[other][cuts[other]])

    @torch.no_grad()
    def all_gather(self, out: Tensor, x: Tensor) -> None:
        """Gather `x`, bytes, of all ranks as the rows of `out`."""
        step = SLOT // x.element_size()
        for start in range(0, x.numel(), step):
            piece = x[start : start + step]
            slots = self._next(piece)
            slots[self.number].copy_(piece)
            self.meet()
            for row, slot in zip(out, slots, strict=True):
                row[start : start + step].copy_(slot)

    @torch.no_grad()
    def broadcast(self, parts: list[tuple[int, Tensor]]) -> None:
        """Fill each tensor, which is contiguous, with what it holds on the rank of that number."""
        for source, x in parts:
            for piece in _pieces(x):
                slots = self._next(piece)
                if source == self.number:
                    slots[source].copy_(piece)
                self.meet()
                if source != self.number:
                    piece.copy_(slots[source])

    def _next(self, x: Tensor) -> list[Tensor]:
        """Return the ranks' slots for a piece: of the half that nobody reads any more.

        A rank may read what the last call left there, as long as it is not in the next one but one.
        """
        self._half = 1 - self._half
        slots: list[Tensor] = self._slots(self._half, x.dtype, x.numel())
        return slots

    def _slots_of(self, half: int, dtype: torch.dtype, count: int) -> list[Tensor]:
        many, first = len(self.ranks), _head(len(self.ranks))
        starts = [first + SLOT * (half * many + number) for number in range(many)]
        return [self._bytes[at : at + count * dtype.itemsize].view(dtype) for at in starts]


def _head(many: int) -> int:
    """Return the bytes before the slots: the semaphores, to a whole page."""
    return -(-SEMAPHORE * many * many // mmap.PAGESIZE) * mmap.PAGESIZE


def size(many: int) -> int:
    """Return the bytes of the memory of so many ranks; what is not used costs none."""
    return _head(many) + 2 * many * SLOT


def _pieces(x: Tensor) -> Iterator[Tensor]:
    flat = x.data.view(-1)  # as a backend's writes, these are unseen by autograd
    return iter(flat.split(SLOT // x.element_size())) if flat.numel() else iter(())


@lru_cache(256)
def _cuts(count: int, many: int) -> list[slice]:
    """Cut elements into a part for each rank."""
    step = -(-count // many)
    return [slice(min(count, n * step), min(count, (n + 1) * step)) for n in range(many)]


def nameless(count: int) -> int:
    """Return a descriptor of so many bytes; a container's small /dev/shm does not limit it."""
    descriptor = os.memfd_create("autoddp", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, count)
    return descriptor


def supported() -> bool:
    """Return whether this system has memory without a name, and semaphores with a deadline."""
    return hasattr(os, "memfd_create") and hasattr(ctypes.CDLL(None), "sem_clockwait")


def share(rank: int, ranks: list[int], store: Store, many: int) -> list[NodeMemory]:
    """Share so many memories between the ranks of a node, all of which call this.

    Returns:
        This rank's view of each; on all ranks none, if they cannot be shared.
    """
    found = connect(rank, ranks, store, f"memory/{ranks[0]}")
    if found is None:
        return []
    with ExitStack() as undo:
        for connected in found.values():
            undo.enter_context(connected)
        if rank != ranks[0]:
            connected = found[ranks[0]]
            _, descriptors, _, _ = socket.recv_fds(connected, 1, many)
            if not descriptors:
                return []
            made = [NodeMemory(ranks.index(rank), ranks, each) for each in descriptors]
            connected.send(HERE)
            return made if connected.recv(1) else []  # once all hold their locks
        try:
            made = [NodeMemory(0, ranks, nameless(size(len(ranks)))) for _ in range(many)]
        except OSError:  # no room
            return []
        for memory in made:
            memory.begin()
        for connected in found.values():
            socket.send_fds(connected, [HERE], [memory.descriptor for memory in made])
        for connected in found.values():
            connected.recv(1)
        for connected in found.values():
            connected.send(HERE)
        return made
