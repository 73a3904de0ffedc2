"""Gloo for accelerators that it does not know: their tensors travel as copies on the host.

Several ranks that share a device need it, and so does an accelerator without a backend of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store
from torch.futures import Future
from torch.utils._pytree import tree_map_only

from autoddp.torch_internals import quiet_gloo, work_of

NAME = "autoddp_copies"


def _by_copies(name: str) -> Callable[..., Any]:
    """Return a collective that gives gloo's of this name copies, and writes them back."""

    def collective(group: Copies, *given: Any) -> Any:
        copies: list[tuple[Tensor, Tensor]] = []

        def on_host(x: Tensor) -> Tensor:
            if x.is_cpu:
                return x
            copies.append((x.detach(), x.detach().cpu().contiguous()))
            return copies[-1][1]

        work = getattr(group.gloo, name)(*tree_map_only(Tensor, on_host, given))
        if not copies:
            return work
        work.wait()
        for x, copy in copies:
            x.copy_(copy)
        future: Future[Any] = Future()
        future.set_result(given[0])
        return work_of(future)

    return collective


class Copies(dist.ProcessGroup):
    """A process group over gloo, with the collectives that DDP and `Group` use."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        # the older of the two ways to call it
        super().__init__(rank, size)  # type: ignore[call-arg, unused-ignore]
        with quiet_gloo():
            self.gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        """Return the name by which torch knows this backend."""
        return NAME

    allreduce = _by_copies("allreduce")
    broadcast = _by_copies("broadcast")
    allgather = _by_copies("allgather")
    _allgather_base = _by_copies("_allgather_base")
    barrier = _by_copies("barrier")


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
