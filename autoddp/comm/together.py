"""A place of the program at which all ranks wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from autoddp import torch_internals

if TYPE_CHECKING:
    from autoddp.comm.group import Group


class Together:
    """A stay there, as a context manager that gives its stamp; a step has some: no generator."""

    __slots__ = ("_at", "_group", "_kind", "_point", "_what", "_x")

    def __init__(self, group: Group, what: str, x: Tensor, kind: str) -> None:
        self._group, self._what, self._x, self._kind = group, what, x, kind

    def __enter__(self) -> str:
        group = self._group
        words = group.collective_check.words(self._what, self._x)
        self._point = (
            group.signal_sync.here() and not torch_internals.in_backward() and group._waits(self._x)
        )
        if self._point:
            group.signal_sync.enter()
        self._at = group.position.at(self._kind, words)
        self._at.__enter__()
        return f"{group.passed} {words}"

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        group = self._group
        try:
            if isinstance(error, RuntimeError) and _is_networks(error):
                group.collective_check.wait_for_the_end()
        finally:
            self._at.__exit__()
        if error is None and self._point:
            group.signal_sync.leave()


def _is_networks(error: RuntimeError) -> bool:
    """Return whether a backend has lost another rank: gloo has no class for that."""
    return isinstance(error, dist.DistError) or "/gloo/transport/" in str(error)
