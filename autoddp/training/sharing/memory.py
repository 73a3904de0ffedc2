"""Memory that ranks of a node share: it has no name, and is gone with the last process that maps it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils import collate

WORTH = 1 << 16  # bytes of a batch below which one copy costs less than memory of its own


def nameless(size: int) -> int:
    """A descriptor of so many bytes; a container's small /dev/shm does not limit it."""
    descriptor = os.memfd_create("autoddp", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    return descriptor


class Piece:
    """Of such memory, mapped; its pages are there once they were written."""

    def __init__(self, size: int) -> None:
        self.size, self.descriptor = size, nameless(size)
        self.flat = torch.frombuffer(mmap.mmap(self.descriptor, size), dtype=torch.uint8)

    def __del__(self) -> None:
        os.close(self.descriptor)


class Memory:
    """Where the batches of a loader without workers are collated, as its workers would: in shared memory.

    Pages that were written once are used again when nobody reads what was there: new ones cost more than
    the copy.
    """

    def __init__(self, idle: Callable[[], bool] = lambda: False) -> None:
        self._idle = idle  # whether all others have taken what they were given
        self._given: dict[int, Piece] = {}
        self._free: list[Piece] = []

    def collate(self, samples: Any) -> Any:
        """What torch's default function gives."""
        if self._given and self._idle():
            self._free += self._given.values()
            self._given.clear()
        kinds = {**collate.default_collate_fn_map, Tensor: self._stacked}
        return collate.collate(samples, collate_fn_map=kinds)

    def found(self, storage: torch.UntypedStorage) -> tuple[int, int] | None:
        """A descriptor of what was collated there, which the caller is to close, and its size."""
        piece = self._given.get(storage.data_ptr())
        return None if piece is None else (os.dup(piece.descriptor), piece.size)

    def _stacked(self, samples: Any, *, collate_fn_map: Any = None) -> Tensor:
        first, plain = samples[0], collate.collate_tensor_fn
        if not all(_is_plain(x) and x.shape == first.shape and x.dtype is first.dtype for x in samples):
            return plain(samples, collate_fn_map=collate_fn_map)
        size = len(samples) * first.numel() * first.element_size()
        if size < WORTH:
            return plain(samples, collate_fn_map=collate_fn_map)
        piece = next((piece for piece in self._free if piece.size == size), None)
        if piece is None:
            piece, self._free = Piece(size), []  # batches of another size need none of the old ones
        else:
            self._free.remove(piece)
        self._given[piece.flat.data_ptr()] = piece
        return torch.stack(samples, 0, out=piece.flat.view(first.dtype).view(len(samples), *first.shape))


def _is_plain(x: Any) -> bool:
    return (
        type(x) is Tensor
        and x.layout is torch.strided
        and x.device.type == "cpu"
        and not (x.requires_grad or x.is_conj() or x.is_neg() or x.is_quantized)
    )


def write(descriptor: int, raw: memoryview, at: int) -> None:
    """All of it, at this place."""
    done = 0
    while done < raw.nbytes:
        done += os.pwrite(descriptor, raw[done:], at + done)


def read(descriptor: int, into: memoryview, at: int) -> None:
    """As much as there is room for, from this place; the place of a descriptor is that of all who have it."""
    done = 0
    while done < into.nbytes:
        done += os.preadv(descriptor, [into[done:]], at + done)


def bytes_of(storage: torch.UntypedStorage) -> memoryview:
    """Its memory."""
    if not storage.nbytes():
        return memoryview(b"")
    kind = ctypes.c_ubyte * storage.nbytes()
    return memoryview(kind.from_address(storage.data_ptr())).cast("B")
