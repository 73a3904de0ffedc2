"""A message between ranks of a node: a pickle that holds the memory of tensors.

torch's own pickling between processes writes a file, loses the conjugate bit, or passes memory that
sender and receiver share.
"""

from __future__ import annotations

import pickle
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_typed_storage


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
            if x.grad_fn is not None or (x.requires_grad and not self.from_worker):
                raise NotTransferable("its batches hold tensors that need a gradient")
            strided = type(x) is Tensor and x.layout is torch.strided
            if strided and 0 < x.nbytes < x.untyped_storage().nbytes():
                return _alone(x).requires_grad_(x.requires_grad).__reduce_ex__(5)
        elif isinstance(x, torch.TypedStorage):
            return reduce_typed_storage(x)
        elif isinstance(x, torch.UntypedStorage):
            if not x.nbytes():
                return partial(torch.UntypedStorage, device=x.device), (0,)
            flat: Any = torch.empty(0, dtype=torch.uint8, device=x.device).set_(x).cpu().numpy()
            return _storage_on, (x.device, pickle.PickleBuffer(flat))
        return NotImplemented


def _alone(x: Tensor) -> Tensor:
    """Return a view without the rest of its memory: rows of a batch are not copied for that."""
    x = x.detach()
    if not (x.is_cpu and x.is_contiguous()) or x.is_conj() or x.is_neg() or x.is_quantized:
        return x.clone()
    return torch.from_numpy(x.view(-1).view(torch.uint8).numpy()).view(x.dtype).view(x.shape)


def _storage_on(device: torch.device, buffer: Any) -> torch.UntypedStorage:
    return torch.frombuffer(buffer, dtype=torch.uint8).to(device).untyped_storage()
