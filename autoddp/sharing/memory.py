"""Memory that ranks of a node share: it has no name, and is gone with the last process that maps it."""

from __future__ import annotations

import ctypes
import mmap
import os
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


class Memory:
    """Where the batches of a loader without workers are collated, as its workers would: in shared memory."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[int, int]] = {}

    def collate(self, samples: Any) -> Any:
        """What torch's default function gives."""
        kinds = {**collate.default_collate_fn_map, Tensor: self._stacked}
        return collate.collate(samples, collate_fn_map=kinds)

    def taken(self, storage: torch.UntypedStorage) -> tuple[int, int] | None:
        """The descriptor and the size of what was collated there; whoever asks is to close it."""
        return self._made.pop(storage.data_ptr(), None)

    def free(self) -> None:
        """What nobody asked for: it is no part of the batch."""
        for descriptor, _ in self._made.values():
            os.close(descriptor)
        self._made.clear()

    def _stacked(self, samples: Any, *, collate_fn_map: Any = None) -> Tensor:
        first, plain = samples[0], collate.collate_tensor_fn
        if not all(_is_plain(x) and x.shape == first.shape and x.dtype is first.dtype for x in samples):
            return plain(samples, collate_fn_map=collate_fn_map)
        size = len(samples) * first.numel() * first.element_size()
        if size < WORTH:
            return plain(samples, collate_fn_map=collate_fn_map)
        descriptor = nameless(size)
        flat = torch.frombuffer(mmap.mmap(descriptor, size), dtype=first.dtype)
        self._made[flat.untyped_storage().data_ptr()] = descriptor, size
        return torch.stack(samples, 0, out=flat.view(len(samples), *first.shape))


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
