"""Memory that the ranks of a node share, in which they reduce and gather tensors.

Each rank has a slot there. It writes to its own, waits for the others, and reads theirs: nothing is
sent. Sums are taken in the order of the ranks, so that all have the same bits. Rank 0 makes the
memory, which has no name, and passes its descriptor on: nothing is left of it when the last process
ends, however that happens.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from autoddp.comm.line import Lines
from autoddp.comm.node_barrier import NodeBarrier, room
from autoddp.errors import Disagreement, RankEnded

SLOT = 1 << 20  # bytes of a piece: larger tensors take one piece after the other
SMALL = 1 << 15  # bytes that each rank reduces whole, which takes less than to wait once more
PAIR = 2  # ranks that read no more of each other if each reduces all itself
SIZES = struct.Struct("qq")  # at the head of a slot: elements, bytes of each
HEAD = 64  # bytes for that, a line of the cache
# halves of all but the smallest of these numbers are exact: before a sum as after
HALVED = (torch.float32, torch.float64, torch.bfloat16)


class NodeMemory:
    """One rank's view of the memory, and of the barrier in it.

    All ranks of the node call the same methods, in the same order, with tensors of the same shape;
    two of these serve two threads.

    Args:
        rank: The number of this rank, whose node has all ranks of the job.
        count: The number of ranks.
        descriptor: The memory's, of `size(count)` bytes.
        lines: Connections between rank 0 and the others, which close when a rank ends.
    """

    def __init__(self, rank: int, count: int, descriptor: int, lines: Lines) -> None:
        self.rank, self.count = rank, count
        self._map = mmap.mmap(descriptor, size(count))
        self.barrier = NodeBarrier(rank, count, self._map, lines)
        # where slots begin: a rank may read what the last call left, until the next but one
        starts = [*range(room(count), size(count), HEAD + SLOT)]
        self._halves = starts[:count], starts[count:]
        self._half = 0
        self._alone = SLOT if count == PAIR else SMALL
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._views = lru_cache(256)(self._views_of)

    @torch.no_grad()
    def all_reduce(self, x: Tensor, mean: bool = False) -> None:
        """Replace `x`, which is contiguous, by the sum or the mean over the ranks.

        Raises:
            Disagreement: Ranks bring tensors of different sizes.
            DistNetworkError: Another rank has ended, see `NodeBarrier`.
        """
        for piece in _pieces(x):
            if piece.nbytes <= self._alone:
                self._reduce_alone(piece, mean)
            else:
                self._reduce_part(piece, mean)

    def _reduce_alone(self, x: Tensor, mean: bool) -> None:
        """Reduce all of a piece here, as every rank does."""
        slots = self._next(x)
        if mean and self.count == PAIR and x.dtype in HALVED:
            torch.mul(x, 1 / PAIR, out=slots[self.rank])  # one pass less
            mean = False
        else:
            slots[self.rank].copy_(x)
        self._wait_alike()
        _combine(slots, mean, x)

    def _reduce_part(self, x: Tensor, mean: bool) -> None:
        """Reduce one part of a piece here, and take the others' from their slots."""
        slots, cuts = self._next(x), _cuts(x.numel(), self.count)
        own, mine = slots[self.rank], cuts[self.rank]
        for cut in cuts:
            if cut is not mine:
                own[cut].copy_(x[cut])
        self._wait_alike()
        # nobody reads this rank's part of its own slot before all have waited again
        parts = [x[mine] if slot is own else slot[mine] for slot in slots]
        _combine(parts, mean, own[mine])
        self.barrier.wait()
        for slot, cut in zip(slots, cuts, strict=True):
            x[cut].copy_(slot[cut])

    @torch.no_grad()
    def all_gather(self, out: Tensor, x: Tensor) -> None:
        """Gather `x`, bytes, of all ranks as the rows of `out`; raise like `all_reduce`."""
        for start in range(0, x.numel(), SLOT):
            piece = x[start : start + SLOT]
            slots = self._next(piece)
            slots[self.rank].copy_(piece)
            self._wait_alike()
            for row, slot in zip(out, slots, strict=True):
                row[start : start + SLOT].copy_(slot)

    @torch.no_grad()
    def reduce_scatter(self, x: Tensor) -> Tensor:
        """Return the mean over ranks of this rank's part of `x`; raise like `all_reduce`."""
        rows = x.view(self.count, -1)
        out = x.new_empty(rows.shape[1])
        step = SLOT // x.element_size() // self.count
        for start in range(0, len(out), step):
            piece = rows[:, start : start + step]
            slots = self._next(piece)
            slots[self.rank].copy_(piece.reshape(-1))
            self._wait_alike()
            own = [slot.view(self.count, -1)[self.rank] for slot in slots]
            _combine(own, True, out[start : start + step])
        return out

    def exchange(self, message: bytes) -> list[bytes]:
        """Return the messages of all ranks, each of which has room in a slot."""
        assert len(message) <= SLOT
        start = self._begin(len(message), 1) + HEAD
        self._map[start : start + len(message)] = message
        self.barrier.wait()
        starts = [start + HEAD for start in self._halves[self._half]]
        return [self._map[at : at + n] for at, (n, _) in zip(starts, self._sizes(), strict=True)]

    def _begin(self, count: int, each: int) -> int:
        """Return where this rank's next slot begins; its head holds count and size of elements."""
        self._half = 1 - self._half
        start = self._halves[self._half][self.rank]
        SIZES.pack_into(self._map, start, count, each)
        return start

    def _next(self, x: Tensor) -> list[Tensor]:
        """Return all ranks' next slots, as tensors of the dtype and size of a piece."""
        self._begin(x.numel(), x.element_size())
        views: list[Tensor] = self._views(self._half, x.dtype, x.numel())
        return views

    def _views_of(self, half: int, dtype: torch.dtype, count: int) -> list[Tensor]:
        starts, nbytes = self._halves[half], count * dtype.itemsize
        with torch.inference_mode(False):  # they outlive it
            return [self._bytes[HEAD + at : HEAD + at + nbytes].view(dtype) for at in starts]

    def _wait_alike(self) -> None:
        """Wait for all ranks, and check that they bring pieces of one size."""
        self.barrier.wait()
        sizes = self._sizes()
        if sizes.count(sizes[0]) != len(sizes):
            raise Disagreement(
                f"ranks bring tensors of different sizes (elements, bytes of each): {sizes}; "
                "a decision in the script differs between ranks"
            )

    def _sizes(self) -> list[tuple[int, int]]:
        return [SIZES.unpack_from(self._map, start) for start in self._halves[self._half]]


def _combine(parts: list[Tensor], mean: bool, out: Tensor) -> None:
    """Write the sum or the mean of what all ranks bring into `out`, in their order.

    Where all bring the same, as of work that is not split, that is the mean: a sum that is divided
    by three or five would be off by its rounding. What differs does so early.
    """
    if mean and all(torch.equal(parts[0], part) for part in parts[1:]):
        out.copy_(parts[0])
        return
    torch.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        out.add_(part)
    if mean:
        out.div_(len(parts))


def _pieces(x: Tensor) -> Iterable[Tensor]:
    """Cut `x`, which is contiguous, into what a slot has room for."""
    flat, step = x.data, SLOT // x.element_size()  # a backend's writes: unseen by autograd
    if flat.dim() != 1:
        flat = flat.view(-1)
    return (flat,) if 0 < flat.numel() <= step else flat.split(step) if flat.numel() else ()


@lru_cache(256)
def _cuts(count: int, many: int) -> list[slice]:
    """Cut elements into a part for each rank."""
    step = -(-count // many)
    return [slice(min(count, n * step), min(count, (n + 1) * step)) for n in range(many)]


def size(many: int) -> int:
    """Return the bytes of the memory of so many ranks; what is not used costs none."""
    return room(many) + 2 * many * (HEAD + SLOT)


def shared(rank: int, count: int, fresh: Lines, lines: Lines) -> NodeMemory:
    """Make a memory of all ranks of a node, each of which calls this.

    Args:
        rank: The number of this rank.
        count: The number of ranks.
        fresh: Unix sockets between rank 0 and the others, by which no message was sent yet.
        lines: Those that show when a rank has ended.

    Raises:
        RankEnded: Rank 0 has ended before.
    """
    if rank == 0:
        # without a name: a container's small /dev/shm does not limit it
        descriptor = os.memfd_create("autoddp", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size(count))
        made = NodeMemory(rank, count, descriptor, lines)
        for line in fresh.values():
            socket.send_fds(line.socket, [b"."], [descriptor])
    else:
        found = socket.recv_fds(fresh[0].socket, 1, 1, socket.MSG_CMSG_CLOEXEC)[1]
        if not found:
            raise RankEnded("rank 0 has ended before it shared its memory")
        descriptor = found[0]
        made = NodeMemory(rank, count, descriptor, lines)
    os.close(descriptor)
    return made
