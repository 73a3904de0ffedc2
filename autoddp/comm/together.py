"""A place of the program at which all ranks wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from autoddp import torch_internals
from autoddp.comm.in_order import await_end

if TYPE_CHECKING:
    from autoddp.comm.group import Group


class Together:
    """A stay there, as a context manager that gives its stamp; a step has some: no generator."""

    __slots__ = ("_at", "_group", "_kind", "_place", "_what", "_x")

    def __init__(self, group: Group, what: str, x: Tensor, kind: str) -> None:
        self._group, self._what, self._x, self._kind = group, what, x, kind

    def __enter__(self) -> str:
        group = self._group
        words = group.collective_check.words(self._what, self._x)
        self._place = group.signal_sync.here() and not torch_internals.in_backward()
        if self._place and group._waits(self._x):
            group.signal_sync.enter()
        self._at = group.position.at(self._kind, words)
        self._at.__enter__()
        return f"{group.passed} {words}"

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        group = self._group
        try:
            wait_for_an_end(group, error)
        finally:
            self._at.__exit__()
        if error is None and self._place:
            group.signal_sync.leave()


@contextmanager
def told_by_launcher(group: Group) -> Iterator[None]:
    """Leave it to the launcher to tell of a rank that the backend loses inside, away from a place.

    What torch says of it names a rank that did nothing wrong.
    """
    try:
        yield
    except RuntimeError as error:
        wait_for_an_end(group, error)
        raise


def wait_for_an_end(group: Group, error: BaseException | None) -> None:
    """Wait for what follows where a backend has lost another rank: gloo has no class for that."""
    if isinstance(error, RuntimeError) and (
        isinstance(error, dist.DistError) or "/gloo/transport/" in str(error)
    ):
        await_end(group.store, group.rank)
