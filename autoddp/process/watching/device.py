"""A probe for a rank that waits for its accelerator: no work on it ends, and Python stays in place.

The processor is busy meanwhile, as drivers wait by polling, so its load says nothing.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from autoddp.comm import accelerator


class Behind:
    """The probe that the thread that watches asks at each look.

    A device is only touched once Python has stayed at one place: that would spoil a CUDA graph, but
    Python moves on while one is recorded.
    """

    def __init__(self) -> None:
        self._place: Any = None
        self._marks: list[Any] = []
        self._since = 0.0

    def waits(self, place: Any) -> float:
        """Return the seconds for which no work on a device has ended, and Python is at `place`."""
        if place != self._place:
            self._place, self._marks = place, []
            return 0.0
        if not self._marks or all(mark.query() for mark in self._marks):
            self._since = time.monotonic()
            self._marks = [
                _mark(device) for device in accelerator.devices() if device.type != "mps"
            ]
        return 0.0 if all(mark.query() for mark in self._marks) else time.monotonic() - self._since


def _mark(device: torch.device) -> torch.Event:
    """Record an event behind all work that the device was given on its default stream."""
    mark = torch.Event(device)
    mark.record()
    return mark
