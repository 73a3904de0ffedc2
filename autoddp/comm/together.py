"""A place of the program at which all ranks wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from autoddp import torch_internals
from autoddp.comm.in_order import await_end

if TYPE_CHECKING:
    from autoddp.comm.group import Group


class Together:
    """A stay there, as a context manager; a step has several, so it is no generator.

    Attributes:
        stamp: The place in words, which all ranks compare.
    """

    __slots__ = ("_at", "_group", "_is_point", "_x", "stamp")

    def __init__(self, group: Group, what: str, x: Tensor, kind: str) -> None:
        words = group.collective_check.words(what, x)
        self._group, self._x, self.stamp = group, x, f"{group.passed} {words}"
        self._at = group.position.at(kind, words)

    def __enter__(self) -> Together:
        self._is_point = self._group.signal_sync.here() and not torch_internals.in_backward()
        self._at.__enter__()
        return self

    def exchange(self, body: bytes, merge: Callable[[list[bytes]], bytes]) -> bytes:
        """Return what `merge` makes of all ranks' bodies, once all are here."""
        return self._group.collective_check.exchange(self.stamp, body, merge)

    def agree(self) -> None:
        """Check that all ranks are about to do the same, or note it where only a device waits."""
        if self._group.native and self._x.device.type != "cpu":
            self._group.collective_check.note(self.stamp)
        else:
            self.exchange(b"", lambda _: b"")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        group = self._group
        try:
            # torch's own message names a rank that did nothing wrong
            if isinstance(error, RuntimeError) and (
                isinstance(error, dist.DistError) or "/gloo/transport/" in str(error)
            ):
                await_end(group.store, group.rank)
        finally:
            self._at.__exit__()
        if error is None and self._is_point:
            group.signal_sync.leave()
