"""A message between ranks of a node: a pickle that holds the memory of tensors.

torch's own pickling between processes writes a file, loses the conjugate bit, or passes memory that
sender and receiver share.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_typed_storage

from autoddp.comm.accelerator import CPU


class NotTransferable(Exception):
    """A batch cannot be sent to another process; the message gives the reason."""


def packed(payload: Any, from_worker: bool) -> list[bytes]:
    """Return the parts of a pickle.

    Args:
        payload: The object to send.
        from_worker: Whether it comes from a worker process.

    Raises:
        NotTransferable: Another process cannot have it.
    """
    parts = list[bytes]()
    try:
        _Packer(parts, from_worker).dump(payload)
    except NotTransferable:
        raise
    except Exception as error:  # raised by an object's own pickling
        raise NotTransferable(
            f"its batches cannot be sent to other ranks ({type(error).__name__}: {error})"
        ) from None
    return parts


class _Packer(pickle.Pickler):
    """A pickler that copies the memory of tensors, without torch's format of files."""

    def __init__(self, parts: list[bytes], from_worker: bool) -> None:
        super().__init__(SimpleNamespace(write=parts.append), 5)
        self.from_worker = from_worker

    def reducer_override(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self._tensor(x)
        if isinstance(x, torch.TypedStorage):
            return reduce_typed_storage(x)
        if not isinstance(x, torch.UntypedStorage):
            return NotImplemented
        if not x.nbytes():
            return torch.UntypedStorage, (0,)
        flat: Any = torch.empty(0, dtype=torch.uint8, device=CPU).set_(x).numpy()
        return _storage_from, (pickle.PickleBuffer(flat),)

    def _tensor(self, x: Tensor) -> Any:
        if x.grad_fn is not None or (x.requires_grad and not self.from_worker):
            raise NotTransferable("its batches hold tensors that need a gradient")
        if x.device.type not in ("cpu", "meta"):
            return _to_device, (x.cpu(), str(x.device))
        plain = type(x) is Tensor and x.layout is torch.strided and not x.is_quantized
        storage = x.untyped_storage() if plain and x.device.type == "cpu" else None
        if storage is None or not 0 < x.nbytes < storage.nbytes():
            return x.__reduce_ex__(5)
        # a view is sent without the rest of its memory
        return x.detach().clone().requires_grad_(x.requires_grad).__reduce_ex__(5)


def _storage_from(buffer: Any) -> torch.UntypedStorage:
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _to_device(x: Tensor, device: str) -> Tensor:
    return x.to(device)
