"""The packing of a batch: what is shared already is told, the rest laid out and copied once."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy

from autoddp import torch_internals
from autoddp.comm.accelerator import CPU
from autoddp.training.sharing.memory import COPIED, FRESH, Lent, Memory, bytes_of, nameless, write
from autoddp.training.sharing.parcel import NOWHERE, Extent, Parcel, Unfit

SMALL = 1 << 12  # bytes of a tensor, or an array, that travel in the message
INLINE = 1 << 13  # bytes of all that do
FEW = 64  # descriptors of one message; what a batch holds beyond that is copied into one
ALIGNED = 64
LAID = -2  # instead of a descriptor's number, in what is copied: the last descriptor


def pack(
    batch: Any, memory: Memory, keeps: Callable[[Any], bool], apart: bool, copied: bool = False
) -> Parcel:
    """Pack a batch for other ranks, while this rank keeps it.

    Args:
        batch: What the loader gave.
        memory: Where its tensors may have been collated.
        keeps: Whether an object is the data set's own, which the script may change by the batch.
        apart: Whether the batch comes from another process, and shares nothing with this one.
        copied: Whether this rank copies its tensors before the script has them; else they get
            other pages.

    Raises:
        Unfit: The batch holds what has no meaning, or another one, in another process.
    """
    body = io.BytesIO()
    pickler = _Pickler(body, keeps, apart, copied)
    try:
        pickler.dump(batch)
    except Unfit:
        raise
    except Exception as error:  # whatever an object's own way to be pickled raises
        raise Unfit(
            f"its batches cannot be handed over ({type(error).__name__}: {error})"
        ) from None
    return _Packing(memory, pickler).parcel(body.getvalue())


class _Pickler(pickle.Pickler):
    def __init__(
        self, body: io.BytesIO, keeps: Callable[[Any], bool], apart: bool, copied: bool
    ) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        # no cycle, or batches stay
        super().__init__(body, protocol=5, buffer_callback=self.buffers.append)
        self.keeps, self.apart, self.copied = keeps, apart, copied
        self.storages: dict[int, list[Any]] = {}  # number, storage, its tensors; kept alive by this
        self.known: dict[int, Any] = {}

    def persistent_id(self, x: Any) -> Any:
        if self.keeps(x):
            raise Unfit(f"its batches hold a {type(x).__name__} that it keeps")
        if type(x) is Lent:
            return self._placed(x, x.laid)
        if type(x) is not Tensor or x.layout is not torch.strided or x.is_meta or x.is_quantized:
            return None
        if x.grad_fn is not None or (x.requires_grad and not self.apart):
            raise Unfit("its batches hold tensors that need a gradient")
        if x.device.type != "cpu":
            return "device", str(x.device), x.cpu()
        return self._placed(x, x.resolve_conj().resolve_neg(), x.requires_grad, vars(x) or None)

    def _placed(self, x: Any, plain: Tensor, needs: bool = False, named: Any = None) -> Any:
        number = self._number(plain)
        self.known[id(x)] = x, plain
        place = plain.dtype, tuple(plain.shape), plain.stride(), plain.storage_offset()
        return "cpu", id(x), number, *place, needs, named

    def _number(self, x: Tensor) -> int:
        storage = x.untyped_storage()
        found = self.storages.setdefault(storage._cdata, [len(self.storages), storage, {}])
        found[2][id(x)] = x
        return int(found[0])


class _Packing:
    """The layout of the tensors and arrays that a pickler left aside."""

    def __init__(self, memory: Memory, pickler: _Pickler) -> None:
        self.memory, self.pickler = memory, pickler
        self.parts: list[tuple[int, memoryview]] = []  # what is copied, and where to
        self.small, self.size = bytearray(), 0
        self.sizes: list[tuple[int, int]] = []
        self.descriptors: list[int] = []
        self.lent: list[tuple[int, int, list[Tensor]]] = []

    def parcel(self, body: bytes) -> Parcel:
        """Lay all of it out; this rank's tensors lie in pages of their own after that."""
        try:
            extents = [
                self._storage(s, list(x.values())) for _, s, x in self.pickler.storages.values()
            ]
            buffers = [(self._copied(b.raw(), 0), b.raw().readonly) for b in self.pickler.buffers]
            for descriptor, size, tensors in () if self.pickler.copied else self.lent:
                _keep_apart(descriptor, size, tensors)
            if self.parts:
                self._lay()
        except BaseException:
            Parcel(b"", descriptors=self.descriptors).close()
            raise
        known = len(self.descriptors) - bool(self.parts)
        extents = [(known if e[0] == LAID else e[0], *e[1:]) for e in extents]
        buffers = [((known if e[0] == LAID else e[0], *e[1:]), readonly) for e, readonly in buffers]
        live = self.memory.live() if any(number > FRESH for _, number in self.sizes) else []
        return Parcel(body, extents, buffers, bytes(self.small), self.sizes, self.descriptors, live)

    def _storage(self, storage: torch.UntypedStorage, tensors: list[Tensor]) -> Extent:
        found = self.memory.found(storage)
        if found is None and storage.is_shared() and storage.nbytes() > SMALL and self._room():
            found = os.dup(storage._share_fd_cpu_()[0]), storage.nbytes(), FRESH
        if found is not None:
            self.descriptors.append(found[0])
            self.sizes.append(found[1:])
            self.lent.append((*found[:2], tensors))
            return len(self.descriptors) - 1, 0, found[1], 0
        if not self.pickler.apart:
            _refuse_shared(storage, tensors)
        first, end = _used(tensors)
        return self._copied(bytes_of(storage)[first:end], first)

    def _room(self) -> bool:
        return len(self.descriptors) < FEW and get_sharing_strategy() == "file_descriptor"

    def _copied(self, raw: memoryview, before: int) -> Extent:
        if raw.nbytes <= SMALL and len(self.small) < INLINE:
            at = len(self.small)
            self.small += raw
            return NOWHERE, at, raw.nbytes, before
        at, self.size = self.size, self.size + -(-raw.nbytes // ALIGNED) * ALIGNED
        self.parts.append((at, raw))
        return LAID, at, raw.nbytes, before

    def _lay(self) -> None:
        """Copy all parts into one piece of memory."""
        descriptor = nameless(self.size)
        self.descriptors.append(descriptor)
        self.sizes.append((self.size, COPIED))
        for at, raw in self.parts:
            write(descriptor, raw, at)


def _used(tensors: list[Tensor]) -> tuple[int, int]:
    """Return the bytes of the tensors' storage, from and to, that any of them shows."""
    first: int = sys.maxsize
    end = 0
    for x in tensors:
        if x.numel():
            reach = sum(
                (size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)
            )
            first = min(first, int(x.storage_offset()) * x.element_size())
            end = max(end, (int(x.storage_offset()) + reach + 1) * x.element_size())
    return min(first, end) // ALIGNED * ALIGNED, end


def _keep_apart(descriptor: int, size: int, tensors: list[Tensor]) -> None:
    """Copy pages on write: others map these, and must not see what this rank's script writes."""
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE)
    private = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    for x in tensors:
        with torch.no_grad(), torch.inference_mode(x.is_inference()):
            x.set_(private, x.storage_offset(), x.size(), x.stride())


def _refuse_shared(storage: torch.UntypedStorage, tensors: list[Tensor]) -> None:
    """Refuse memory that the data set keeps: what is written there, this rank alone would see."""
    given = {id(x) for x in tensors}
    bases = {id(x._base): x for x in tensors if x._base is not None and id(x._base) not in given}
    alone = _holders(torch.empty(2, device=CPU)[:1])
    held = any(_holders(x) > alone for x in bases.values())
    users = torch_internals.storage_users(storage)
    if held or users > len(tensors) + len(bases) + 1:
        raise Unfit("its batches hold tensors that it keeps")


def _holders(x: Tensor) -> int:
    """Count the references to the tensor that this one is a view of."""
    return sys.getrefcount(x._base)
