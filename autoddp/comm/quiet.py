"""A stretch of the script's thread in which no order of rank 0 is looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoddp.comm.signal_sync import SignalSync


class Quiet:
    """Orders are held back inside, on the script's thread: signals are not another one's."""

    __slots__ = ("_sync",)

    def __init__(self, sync: SignalSync) -> None:
        self._sync = sync if sync._context.on_script_thread() else None

    def __enter__(self) -> None:
        if self._sync is not None:
            self._sync._inside += 1

    def __exit__(self, *_: object) -> None:
        if self._sync is not None:
            self._sync._inside -= 1
