"""Whether Python's collector of cycles runs: ranks collect at different moments.

What a `__del__` does then has no place in the order of the script.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Mapping
from contextlib import ExitStack


class GcWatch:
    """Watches it on the thread that made this."""

    def __init__(self) -> None:
        self.running = False
        self._watched = False
        self._thread = threading.get_ident()

    def watch(self, undo: ExitStack) -> None:
        """From now on; twice is harmless."""
        if not self._watched:
            self._watched = True
            gc.callbacks.append(self._note)
            undo.callback(gc.callbacks.remove, self._note)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        if threading.get_ident() == self._thread:
            self.running = phase == "start"
