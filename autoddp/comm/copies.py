"""Gloo for accelerators that it does not know: what they hold travels as a copy on the host.

Several ranks that share a device need it, and so does an accelerator without a backend of its own,
such as MPS.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store
from torch.futures import Future

from autoddp.torch_internals import quiet_gloo, work_of

NAME = "autoddp_copies"


class Copies(dist.ProcessGroup):
    """A process group over gloo: CPU tensors go as they are, others as copies on the host."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        # the older of the two ways to call it
        super().__init__(rank, size)  # type: ignore[call-arg, unused-ignore]
        with quiet_gloo():
            self.gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        """Return the name by which torch knows this backend."""
        return NAME

    # torch has overloads of these three for other callers

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Any:  # type: ignore[override]
        """Reduce the tensors in place over all ranks."""
        return _by_copies(
            lambda xs: self.gloo.allreduce(xs, options or dist.AllreduceOptions()), tensors
        )

    def broadcast(self, tensors: list[Tensor], options: Any = None) -> Any:  # type: ignore[override]
        """Fill the tensors in place with those of the root rank."""
        return _by_copies(
            lambda xs: self.gloo.broadcast(xs, options or dist.BroadcastOptions()), tensors
        )

    def _allgather_base(self, out: Tensor, given: Tensor, options: Any = None) -> Any:
        if out.device.type == "cpu":
            return self.gloo._allgather_base(out, given)
        whole, part = out.detach().cpu(), given.detach().cpu()
        self.gloo._allgather_base(whole, part).wait()
        out.detach().copy_(whole)
        return _done([out])

    def allgather(self, outs: list[list[Tensor]], given: list[Tensor], options: Any = None) -> Any:  # type: ignore[override]
        """Fill `outs` with each rank's tensor, one after the other."""
        if given[0].device.type == "cpu":
            return self.gloo.allgather(outs, given)
        parts = [x.detach().cpu() for x in outs[0]]
        self.gloo.allgather([parts], [given[0].detach().cpu()]).wait()
        for out, part in zip(outs[0], parts, strict=True):
            out.detach().copy_(part)
        return _done(outs)

    def barrier(self, options: Any = None) -> Any:
        """Wait for all ranks, not for their devices."""
        return self.gloo.barrier()


def _by_copies(act: Any, tensors: list[Tensor]) -> Any:
    if tensors[0].device.type == "cpu":
        return act(tensors)
    held = [x.detach().cpu().contiguous() for x in tensors]
    act(held).wait()
    for x, new in zip(tensors, held, strict=True):
        x.detach().copy_(new)
    return _done(tensors)


def _done(value: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(value)
    return work_of(future)


@contextmanager
def registered(kind: str) -> Iterator[str]:
    """Yield the name by which torch knows `Copies`; afterwards, it is nobody's default."""
    known = dict(dist.Backend.default_device_backend_map)
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, Copies, devices=["cpu", kind])
    try:
        yield NAME
    finally:
        dist.Backend.default_device_backend_map.clear()
        dist.Backend.default_device_backend_map.update(known)
