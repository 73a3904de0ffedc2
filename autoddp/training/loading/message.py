"""A message between ranks of a node: a pickle, with the memory of large tensors out of band.

torch's own pickling between processes writes a file, loses the conjugate bit, or passes a file
descriptor to one receiver only.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import reduce_typed_storage

from autoddp.comm.accelerator import CPU

MIN_BUFFER = 1 << 16  # bytes; smaller buffers are part of the pickle
MAX_DESCRIPTORS = 64  # file descriptors of one message
HEADER = struct.Struct("3q")  # size of the pickle, number of buffers, number of descriptors
PART = struct.Struct("3q")  # size of a buffer, index of its descriptor or -1, offset in that
MARK = b"."  # descriptors are sent with a byte


class NotTransferable(Exception):
    """A batch cannot be sent to another process; the message gives the reason."""


class Buffer(NamedTuple):
    """Memory that is sent after the pickle, or that a file descriptor maps."""

    raw: memoryview
    descriptor: int = -1
    at: int = 0


class Message:
    """A message that is ready to be sent.

    Args:
        payload: The object to send.
        from_worker: Whether it comes from a worker process.
        mapped: Whether shared memory is sent as a file descriptor, which the receiver maps
            privately.

    Raises:
        NotTransferable: Another process cannot have it.
    """

    def __init__(self, payload: Any, from_worker: bool, mapped: bool = False) -> None:
        body, self.parts = io.BytesIO(), list[Buffer]()
        try:
            _Packer(body, self.parts, from_worker, mapped).dump(payload)
        except NotTransferable:
            raise
        except Exception as error:  # raised by an object's own pickling
            raise NotTransferable(
                f"its batches cannot be sent to other ranks ({type(error).__name__}: {error})"
            ) from None
        self.body = body.getvalue()

    def send(self, connection: socket.socket) -> None:
        """Send the message; block while the receiver does not read."""
        held = [part.descriptor for part in self.parts if part.descriptor >= 0]
        header = HEADER.pack(len(self.body), len(self.parts), len(held))
        for raw, descriptor, at in self.parts:
            header += PART.pack(raw.nbytes, held.index(descriptor) if descriptor >= 0 else -1, at)
        connection.sendall(header, socket.MSG_NOSIGNAL)
        if held:
            socket.send_fds(connection, [MARK], held, socket.MSG_NOSIGNAL)
        connection.sendall(self.body, socket.MSG_NOSIGNAL)
        for part in self.parts:
            if part.descriptor < 0:
                connection.sendall(part.raw, socket.MSG_NOSIGNAL)


def received(connection: socket.socket) -> Any:
    """Wait for a message and return its payload.

    Raises:
        EOFError: The other rank has ended.
    """
    size, count, descriptor_count = HEADER.unpack(_bytes(connection, HEADER.size))
    parts = list(PART.iter_unpack(_bytes(connection, count * PART.size)))
    maps, descriptors = list[Any](), list[int]()
    try:
        if descriptor_count:
            descriptors = socket.recv_fds(connection, 1, descriptor_count, socket.MSG_CMSG_CLOEXEC)[
                1
            ]
            maps = [_mapped(descriptor) for descriptor in descriptors]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    body = _bytes(connection, size)
    buffers = (
        _bytes(connection, count) if number < 0 else maps[number][at : at + count]
        for count, number, at in parts
    )
    return pickle.loads(body, buffers=list(buffers))


def _bytes(connection: socket.socket, size: int) -> Any:
    """Receive `size` bytes into memory with a tensor's alignment."""
    found: Any = torch.empty(size, dtype=torch.uint8, device=CPU).numpy()
    view = memoryview(found)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return found


def _mapped(descriptor: int) -> Any:
    """Map a file descriptor privately, without keeping it open."""
    path, size = f"/proc/self/fd/{descriptor}", os.fstat(descriptor).st_size
    return _flat(torch.UntypedStorage.from_file(path, False, size))


class _Packer(pickle.Pickler):
    """A pickler that passes the memory of tensors out of band."""

    def __init__(
        self, body: io.BytesIO, parts: list[Buffer], from_worker: bool, mapped: bool
    ) -> None:
        shared: list[tuple[int, int]] = []  # (descriptor, offset) of the next buffer

        def in_band(buffer: pickle.PickleBuffer) -> bool:
            raw, place = buffer.raw(), shared.pop() if shared else (-1, 0)
            if raw.nbytes < MIN_BUFFER or raw.readonly:
                return True
            parts.append(Buffer(raw, *place))
            return False

        super().__init__(body, 5, buffer_callback=in_band)
        self.from_worker, self.shared, self.parts = from_worker, shared, parts
        self.mapped = mapped and get_sharing_strategy() == "file_descriptor"

    def reducer_override(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self._tensor(x)
        if isinstance(x, torch.TypedStorage):
            return reduce_typed_storage(x)
        if not isinstance(x, torch.UntypedStorage):
            return NotImplemented
        if not x.nbytes():
            return torch.UntypedStorage, (0,)
        return _storage_from, (pickle.PickleBuffer(_flat(x)),)

    def _tensor(self, x: Tensor) -> Any:
        if x.grad_fn is not None or (x.requires_grad and not self.from_worker):
            raise NotTransferable("its batches hold tensors that need a gradient")
        if x.device.type not in ("cpu", "meta"):
            return _to_device, (x.cpu(), str(x.device))
        plain = type(x) is Tensor and x.layout is torch.strided and not x.is_quantized
        storage = x.untyped_storage() if plain and x.device.type == "cpu" else None
        if storage is None or not 0 < x.nbytes < storage.nbytes():
            return x.__reduce_ex__(5)
        if not x.is_contiguous() or x.is_conj() or x.is_neg() or x.requires_grad:
            # without the rest of the memory of which it is a view
            return x.detach().clone().requires_grad_(x.requires_grad).__reduce_ex__(5)
        if self.mapped and storage.is_shared() and len(self.parts) < MAX_DESCRIPTORS:
            at = int(x.storage_offset()) * x.element_size()
            self.shared.append((storage._share_fd_cpu_()[0], at))
        raw: Any = x.reshape(-1).view(torch.uint8).numpy()
        return _tensor_from, (pickle.PickleBuffer(raw), x.dtype, tuple(x.shape))


def _flat(storage: Any) -> Any:
    """Return the bytes of a storage as an array that shares its memory."""
    return torch.empty(0, dtype=torch.uint8, device=CPU).set_(storage).numpy()


def _storage_from(buffer: Any) -> torch.UntypedStorage:
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _tensor_from(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def _to_device(x: Tensor, device: str) -> Tensor:
    return x.to(device)
