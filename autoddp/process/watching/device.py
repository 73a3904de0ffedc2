"""Whether this rank waits for its accelerator: nothing asked of it ends, and Python stays where it is.

A processor is busy meanwhile, as drivers wait by looking, so what it does says nothing.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from autoddp.comm import accelerator


class Behind:
    """Asked at each look of the thread that watches.

    A device is only touched once Python has stayed at one place: while a CUDA graph is recorded, which it
    would spoil, it does not.
    """

    def __init__(self) -> None:
        self._place: Any = None
        self._marks: list[Any] = []
        self._since = 0.0

    def waits(self, place: Any) -> float:
        """Seconds for which nothing has ended on a device, and the main thread has stayed at `place`."""
        if place != self._place:
            self._place, self._marks = place, []
            return 0.0
        if not self._marks or all(mark.query() for mark in self._marks):
            self._since = time.monotonic()
            self._marks = [_mark(device) for device in accelerator.devices() if device.type != "mps"]
        return 0.0 if all(mark.query() for mark in self._marks) else time.monotonic() - self._since


def _mark(device: torch.device) -> torch.Event:
    """Comes behind all that the device was given on its default stream."""
    mark = torch.Event(device)
    mark.record()
    return mark
