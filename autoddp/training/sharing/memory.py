"""Memory that ranks of a node share: without a name, gone with the last process that maps it."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data._utils import collate

from autoddp.comm.accelerator import CPU
from autoddp.comm.node_sharing import nameless as nameless

if TYPE_CHECKING:
    from autoddp.view.shard_sizes import ShardSizes

WORTH = 1 << 16  # bytes of a batch below which one copy costs less than memory of its own
MOST = 8  # pieces of private memory whose end is waited for
# Numbers of memory that is no piece: it holds one batch; a copy of parts of it.
FRESH, COPIED = 0, -1


ALONE = [mmap.mmap(-1, 1)]
KEPT = sys.getrefcount(ALONE[0])  # by a list and who asks


class Piece:
    """A mapped piece of such memory; its pages are there once they were written.

    Attributes:
        number: One of this process's own, by which the other ranks know the piece again.
    """

    _numbers = itertools.count(1)

    def __init__(self, size: int) -> None:
        self.number, self.size, self.descriptor = next(self._numbers), size, nameless(size)
        self.flat = torch.frombuffer(mmap.mmap(self.descriptor, size), dtype=torch.uint8)

    def __del__(self) -> None:
        os.close(self.descriptor)


class Lent:
    """A tensor of a batch, in a piece that is used again: each rank copies what it needs of it.

    The first rank has its own rows where one process would have them; the piece lacks them.
    """

    def __init__(self, laid: Tensor, own: Tensor | None = None, start: int = 0) -> None:
        self.laid, self.own, self.start = laid, own, start
        self.shape, self.dtype = laid.shape, laid.dtype

    def rows(self, cuts: ShardSizes, again: Again) -> Tensor:
        """Return this rank's rows, in memory that is the script's."""
        if self.own is not None:
            return self.own
        rows = cuts.take(self.laid, 0)
        return again.empty(rows.shape, rows.dtype).copy_(rows)

    def whole(self) -> Tensor:
        """Return a copy of the whole tensor."""
        if self.own is not None:
            self.laid.narrow(0, self.start, len(self.own)).copy_(self.own)
        return self.laid.clone()


class Again:
    """Private memory for a rank's rows, used again when no tensor lies there any more.

    A batch is as large as the last one, and comes when that is gone: pages that the C library gives
    back to the kernel, and asks for again, cost more than the copy.
    """

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def empty(self, shape: Any, dtype: torch.dtype) -> Tensor:
        """Allocate like torch.empty, in memory used again."""
        size = math.prod(shape) * dtype.itemsize
        if size < WORTH:
            return torch.empty(shape, dtype=dtype, device=CPU)
        fits = (
            n
            for n in range(len(self._maps))
            if len(self._maps[n]) == size and _is_free(self._maps, n)
        )
        number = next(fits, None)
        if number is None:
            busy = [n for n in range(len(self._maps)) if not _is_free(self._maps, n)]
            self._maps = [self._maps[n] for n in busy[-MOST:]]
            self._maps.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            number = -1
        return torch.frombuffer(self._maps[number], dtype=torch.uint8).view(dtype).view(shape)


class Memory:
    """Shared memory where batches of a loader without workers are collated, as workers would.

    Pages that were written once are used again when nobody reads what was there: new ones cost more
    than the copy.

    Attributes:
        cut: What cuts a batch over the ranks as the last one was: rows of this rank are kept
            apart then.
        again: Memory of these rows.
    """

    def __init__(self, behind: Callable[[], int] = lambda: sys.maxsize) -> None:
        self.cut: Callable[[int], ShardSizes] | None = None
        self.again = Again()
        self._begun = False
        self._behind = behind  # how many batches that were given some rank has not taken yet
        self._made: dict[int, Piece] = {}  # for the batch that is given next
        self._given: deque[list[Piece]] = deque()
        self._free: list[Piece] = []

    def collate(self, samples: Any) -> Any:
        """Collate like torch's default; large tensors are `Lent`, but those of the first batch.

        The cut of that is not known yet; and the C library keeps as much memory for later as was
        freed at once, which is to be as much as in one process.
        """
        self._free += self._made.values()  # that batch was not given
        self._made.clear()
        behind = self._behind() if self._given else 0
        while len(self._given) > behind:
            self._free += self._given.popleft()
        begun, self._begun = self._begun, True
        if not begun or not _plainly_held(samples[0]):
            return collate.default_collate(samples)
        kinds = {**collate.default_collate_fn_map, Tensor: self._stacked}
        return collate.collate(samples, collate_fn_map=kinds)

    def given(self) -> None:
        """Note that the batch was given to all others."""
        self._given.append(list(self._made.values()))
        self._made.clear()

    def live(self) -> list[int]:
        """Return the numbers of all pieces that may come again."""
        return [
            piece.number for piece in itertools.chain(self._free, self._made.values(), *self._given)
        ]

    def found(self, storage: torch.UntypedStorage) -> tuple[int, int, int] | None:
        """Return what was collated there: a descriptor for the caller to close, size and number."""
        piece = self._made.get(storage.data_ptr())
        return None if piece is None else (os.dup(piece.descriptor), piece.size, piece.number)

    def _stacked(self, samples: Any, *, collate_fn_map: Any = None) -> Any:
        first, plain = samples[0], collate.collate_tensor_fn
        if not all(
            _is_plain(x) and x.shape == first.shape and x.dtype is first.dtype for x in samples
        ):
            return plain(samples, collate_fn_map=collate_fn_map)
        size = len(samples) * first.numel() * first.element_size()
        if size < WORTH:
            return plain(samples, collate_fn_map=collate_fn_map)
        laid = self._piece(size).view(first.dtype).view(len(samples), *first.shape)
        cuts = self.cut(len(samples)) if self.cut else None
        # int64: targets are counted in the whole
        if cuts is None or not cuts.smallest or first.dtype is torch.int64:
            return Lent(torch.stack(samples, 0, out=laid))
        start, end = cuts.offset, cuts.offset + cuts.local
        for here in (slice(start), slice(end, None)):
            if samples[here]:
                torch.stack(samples[here], 0, out=laid[here])
        own = self.again.empty((cuts.local, *first.shape), first.dtype)
        return Lent(laid, torch.stack(samples[start:end], 0, out=own), start)

    def _piece(self, size: int) -> Tensor:
        piece = next((piece for piece in self._free if piece.size == size), None)
        if piece is None:
            piece, self._free = Piece(size), []  # batches of another size need none of the old ones
        else:
            self._free.remove(piece)
        self._made[piece.flat.data_ptr()] = piece
        return piece.flat


class Maps:
    """Maps of the first rank's pieces on another one: mapping costs more than copying from them."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}

    def of(self, descriptor: int, size: int, number: int) -> mmap.mmap | None:
        """Map the pages that all share, a piece's once; None if the batch was copied for others."""
        if number == COPIED:
            return None
        found = self._maps.get(number) or mmap.mmap(descriptor, size)
        if number != FRESH:
            self._maps[number] = found
        return found

    def keep(self, live: list[int]) -> None:
        """Drop the maps of all pieces but these."""
        for number in self._maps.keys() - set(live):
            del self._maps[number]


def _is_free(maps: list[mmap.mmap], number: int) -> bool:
    """Return whether no tensor keeps this map."""
    return sys.getrefcount(maps[number]) <= KEPT


def _plainly_held(sample: Any) -> bool:
    """Return whether no container of a user's own kind is there, which would see a `Lent`."""
    if type(sample) is dict:
        return all(map(_plainly_held, sample.values()))
    if type(sample) in (list, tuple):
        return all(map(_plainly_held, sample))
    return type(sample) in (Tensor, str, bytes) or not isinstance(sample, (Mapping, Sequence))


def _is_plain(x: Any) -> bool:
    return (
        type(x) is Tensor
        and x.layout is torch.strided
        and x.device.type == "cpu"
        and not (x.requires_grad or x.is_conj() or x.is_neg() or x.is_quantized)
    )


def write(descriptor: int, raw: memoryview, at: int) -> None:
    """Write all bytes to a descriptor, from this place on."""
    done = 0
    while done < raw.nbytes:
        done += os.pwrite(descriptor, raw[done:], at + done)


def read(descriptor: int, into: memoryview, at: int) -> None:
    """Read as much as there is room for, from this place on.

    The place is given, since that of a descriptor is shared by all who have it.

    Raises:
        EOFError: There is less to be read.
    """
    done = 0
    while done < into.nbytes:
        some = os.preadv(descriptor, [into[done:]], at + done)
        if not some:
            raise EOFError(f"memory that ranks share ends after {done} of {into.nbytes} bytes")
        done += some


def bytes_of(storage: torch.UntypedStorage) -> memoryview:
    """Return the memory of a storage, without a copy."""
    if not storage.nbytes():
        return memoryview(b"")
    kind = ctypes.c_ubyte * storage.nbytes()
    return memoryview(kind.from_address(storage.data_ptr())).cast("B")
