"""A batch on its way to a node's other ranks: a pickle, and its large parts in memory beside it.

Tensors that worker processes collated lie in shared memory already, and go by its descriptor. The
rest is copied once for all ranks, into memory without a name: a job that is killed leaves none
behind. Whoever opens a parcel maps it privately: what a script writes into its batch stays its own.
"""

from __future__ import annotations

import io
import os
import pickle
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import reduce_typed_storage

from autoddp.comm.accelerator import CPU
from autoddp.comm.node_memory import nameless

WORTH = 1 << 17  # bytes of a part below which it travels in the pickle
FEW = 64  # descriptors of one parcel
ALIGNED = 64
COPIED = -1  # instead of a descriptor's number: in the memory of what is copied, the last one

Extent = tuple[int, int, int, bool]
Rows = tuple[int, int, int]  # first, end, of how many


class Unfit(Exception):
    """The refusal of a batch that cannot be handed over as it is; the message says why."""


@dataclass
class Parcel:
    """A batch that was packed for other ranks.

    Attributes:
        body: The pickle.
        extents: Of each part beside it the number of its descriptor, where there, how many bytes,
            and whether nobody may write there.
        descriptors: Of the memory of these parts; whoever holds the parcel closes them.
    """

    body: bytes
    extents: list[Extent] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def open(self) -> Any:
        """Unpack the batch, which is this rank's own."""
        maps = [_mapped(descriptor) for descriptor in self.descriptors]
        views = (maps[number][at : at + size] for number, at, size, _ in self.extents)
        fixed = (extent[3] for extent in self.extents)
        buffers = [v.toreadonly() if kept else v for v, kept in zip(views, fixed, strict=True)]
        return pickle.loads(self.body, buffers=buffers)

    def close(self) -> None:
        """Close the descriptors of its memory."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def pack(batch: Any, apart: bool, rows: Rows | None = None) -> Parcel:
    """Pack a batch for other ranks.

    Args:
        batch: What the loader gave.
        apart: Whether it comes from another process, and this rank opens the parcel, too.
        rows: If all of it are tensors with so many rows, which of them the other ranks need.

    Raises:
        Unfit: The batch holds what has no meaning, or another one, in another process.
    """
    body, aside = io.BytesIO(), _Aside(apart)
    try:
        _Packer(body, aside).dump(batch)
        parcel = Parcel(body.getvalue(), aside.extents, aside.descriptors)
        if aside.parts:
            _lay(parcel, aside.parts, rows)
        return parcel
    except BaseException as error:
        Parcel(b"", [], aside.descriptors).close()
        if isinstance(error, Unfit) or not isinstance(error, Exception):
            raise
        # whatever an object's own way to be pickled raises
        raise Unfit(
            f"its batches cannot be handed over ({type(error).__name__}: {error})"
        ) from None


class _Packer(pickle.Pickler):
    def __init__(self, body: io.BytesIO, aside: _Aside) -> None:
        super().__init__(body, 5, buffer_callback=aside.put)
        self.aside = aside  # which does not know this one: no cycle, or batches stay

    def reducer_override(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self._tensor(x)
        if isinstance(x, torch.TypedStorage):
            return reduce_typed_storage(x)
        if not isinstance(x, torch.UntypedStorage):
            return NotImplemented
        if not x.nbytes():
            return torch.UntypedStorage, (0,)
        self.aside.storage = x
        return _storage, (pickle.PickleBuffer(_flat(x)),)

    def _tensor(self, x: Tensor) -> Any:
        if x.grad_fn is not None or (x.requires_grad and not self.aside.apart):
            raise Unfit("its batches hold tensors that need a gradient")
        if x.device.type not in ("cpu", "meta"):
            return _on, (x.cpu(), str(x.device))
        if type(x) is Tensor and x.layout is torch.strided and x.device.type == "cpu":
            # int64: targets, which each rank counts in the whole
            self.aside.by_rows = x.dtype is not torch.int64 and x.is_contiguous()
            if not x.is_quantized and x.nbytes < x.untyped_storage().nbytes():
                x = x.detach().clone().requires_grad_(x.requires_grad)  # not all it is a view of
        return x.__reduce_ex__(5)


@dataclass
class _Aside:
    """The parts of a batch that do not travel in its pickle.

    Attributes:
        parts: Those that are to be copied: where to, and whether each rank needs some rows alone.
        storage: The storage that the next part is, if it is a tensor's; `by_rows` is that one's.
    """

    apart: bool
    extents: list[Extent] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    parts: list[tuple[int, memoryview, bool]] = field(default_factory=list)
    size: int = 0
    storage: torch.UntypedStorage | None = None
    by_rows: bool = False

    def put(self, buffer: pickle.PickleBuffer) -> bool:
        """Put a part aside, or return that it travels in the pickle."""
        raw, storage, self.storage = buffer.raw(), self.storage, None
        if raw.nbytes < WORTH:
            return True
        if storage is not None and self._is_shared(storage):
            self.extents.append((len(self.descriptors), 0, raw.nbytes, False))
            self.descriptors.append(os.dup(storage._share_fd_cpu_()[0]))
            return False
        self.extents.append((COPIED, self.size, raw.nbytes, raw.readonly))
        self.parts.append((self.size, raw, storage is not None and self.by_rows))
        self.size += -(-raw.nbytes // ALIGNED) * ALIGNED
        return False

    def _is_shared(self, storage: torch.UntypedStorage) -> bool:
        room = len(self.descriptors) < FEW and get_sharing_strategy() == "file_descriptor"
        return self.apart and room and storage.is_shared()


def _lay(parcel: Parcel, parts: list[tuple[int, memoryview, bool]], rows: Rows | None) -> None:
    """Copy parts into one piece of memory; no bytes of rows that nobody needs."""
    at, raw, _ = parts[-1]
    memory = nameless(at + raw.nbytes)
    parcel.descriptors.append(memory)
    for at, raw, by_rows in parts:
        first, end = 0, raw.nbytes
        if rows is not None and by_rows:
            first, end = (raw.nbytes // rows[2] * n for n in rows[:2])
        while first < end:
            first += os.pwrite(memory, raw[first:end], at + first)
    number = len(parcel.descriptors) - 1
    parcel.extents = [(number if e[0] == COPIED else e[0], *e[1:]) for e in parcel.extents]


def _mapped(descriptor: int) -> memoryview:
    """Map memory privately; a descriptor is not kept, of which a process has few."""
    size = os.fstat(descriptor).st_size
    path = f"/proc/self/fd/{descriptor}"
    return memoryview(_flat(torch.UntypedStorage.from_file(path, False, size)))


def _flat(storage: Any) -> Any:
    """Return the bytes of a storage as an array, without a copy."""
    return torch.empty(0, dtype=torch.uint8, device=CPU).set_(storage).numpy()


def _storage(buffer: Any) -> torch.UntypedStorage:
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _on(x: Tensor, device: str) -> Tensor:
    return x.to(device)
