"""A batch on its way to a node's other ranks: tensors and arrays by memory, the rest as a pickle.

Memory that is shared already (worker processes collate in it) is told by its descriptor; the rest
is copied once for all ranks, into memory without a name: a job that is killed leaves none behind.
Whoever opens a parcel copies it, or what it needs of it: what a script writes into its batch stays
its own.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from autoddp.comm.accelerator import CPU
from autoddp.training.sharing.memory import FRESH, Lent, Maps, bytes_of, read

NOWHERE = -1  # instead of a descriptor's number: in the message

# Descriptor's number, where there, how many bytes, where in the original.
Extent = tuple[int, int, int, int]


class Unfit(Exception):
    """The refusal of a batch that cannot be handed over as it is; the message says why."""


@dataclass
class Parcel:
    """A packed batch: what the message says of it, and the descriptors that go with it."""

    body: bytes
    extents: list[Extent] = field(default_factory=list)
    buffers: list[tuple[Extent, bool]] = field(default_factory=list)  # arrays; whether readonly
    inline: bytes = b""
    sizes: list[tuple[int, int]] = field(default_factory=list)  # of memory described; its number
    descriptors: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)  # the numbers that may come again

    def said(self) -> tuple[Any, ...]:
        """Return what travels beside the descriptors."""
        return self.body, self.extents, self.buffers, self.inline, self.sizes, self.live

    @classmethod
    def heard(cls, said: tuple[Any, ...], descriptors: list[int]) -> Parcel:
        """Make a parcel again of what its `said` returned, and of its descriptors."""
        body, extents, buffers, inline, sizes, live = said
        return cls(body, extents, buffers, inline, sizes, descriptors, live)

    def open(self, known: Maps | None = None) -> Any:
        """Unpack the batch, which is this rank's own, and close the descriptors.

        Args:
            known: If given, the batch lies in pages that all ranks share, those of a piece in what
                is `Lent`; the script is to get copies, which no other rank has.
        """
        try:
            maps: list[mmap.mmap | None] = [None] * len(self.descriptors)
            if known is not None:
                found = zip(self.descriptors, self.sizes, strict=True)
                maps = [known.of(descriptor, *said) for descriptor, said in found]
                known.keep(self.live)
            views = (self._view(extent, maps, readonly) for extent, readonly in self.buffers)
            reader = _Unpickler(io.BytesIO(self.body), views, lambda n: self._storage(n, maps))
            reader.lent = {
                n
                for n, (at, *_) in enumerate(self.extents)
                if at >= 0 and self.sizes[at][1] > FRESH
            }
            return reader.load()
        finally:
            self.close()

    def close(self) -> None:
        """Close the parcel's descriptors, if they are open."""
        descriptors, self.descriptors = self.descriptors, []
        for descriptor in descriptors:
            os.close(descriptor)

    def _view(self, extent: Extent, maps: list[mmap.mmap | None], readonly: bool) -> memoryview:
        number, at, length, _ = extent
        if number == NOWHERE:
            view = memoryview(bytearray(self.inline[at : at + length]))
        elif (shared := maps[number]) is not None:
            view = memoryview(shared)[at : at + length]
        else:
            view = memoryview(bytearray(length))
            read(self.descriptors[number], view, at)
        return view.toreadonly() if readonly else view

    def _storage(
        self, number: int, maps: list[mmap.mmap | None]
    ) -> tuple[torch.UntypedStorage, int]:
        """Return a storage, and how many bytes were left out before it."""
        extent = self.extents[number]
        if not extent[2]:
            return torch.UntypedStorage(0), extent[3]
        if extent[0] == NOWHERE or maps[extent[0]] is not None:
            view = self._view(extent, maps, False)
            return torch.frombuffer(view, dtype=torch.uint8).untyped_storage(), extent[3]
        storage = torch.UntypedStorage(extent[2])
        read(self.descriptors[extent[0]], bytes_of(storage), extent[1])
        return storage, extent[3]


class _Unpickler(pickle.Unpickler):
    def __init__(self, body: io.BytesIO, views: Any, storage: Callable[[int], Any]) -> None:
        super().__init__(body, buffers=views)
        self.storage = storage
        self.lent: set[int] = set()  # storages in pieces
        self.storages: dict[int, Any] = {}
        self.tensors: dict[int, Any] = {}

    def persistent_load(self, said: Any) -> Any:
        if said[0] == "device":
            return said[2].to(said[1])
        _, key, number, dtype, shape, stride, offset, needs, named = said
        if key in self.tensors:
            return self.tensors[key]
        if number not in self.storages:
            self.storages[number] = self.storage(number)
        storage, before = self.storages[number]
        x = torch.empty(0, dtype=dtype, device=CPU)
        x.set_(storage, offset - before // x.element_size(), shape, stride)
        x.requires_grad_(needs)
        vars(x).update(named or {})
        self.tensors[key] = Lent(x) if number in self.lent else x
        return self.tensors[key]
