"""A watch on Python's collector of cycles, which runs at different moments on each rank.

What a `__del__` does meanwhile has no place in the order of the script.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Mapping
from contextlib import ExitStack


class GcWatch:
    """A flag that is set while the collector runs on the thread that made this object."""

    def __init__(self) -> None:
        self.running = False
        self._thread = threading.get_ident()

    def watch(self, undo: ExitStack) -> None:
        """Watch the collector from now on; twice is harmless."""
        if self._note not in gc.callbacks:
            gc.callbacks.append(self._note)
            undo.callback(gc.callbacks.remove, self._note)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        if threading.get_ident() == self._thread:
            self.running = phase == "start"
