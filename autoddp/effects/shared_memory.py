"""Memory that the script shares with its processes: other ranks copy what rank 0's holds.

Only rank 0's processes write to it. Each time the script hears of them, all ranks get the blocks
that have changed since.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

View = Callable[[Any], memoryview]


class SharedMemory:
    """The blocks of shared memory of one rank, numbered alike on all ranks."""

    def __init__(self) -> None:
        self._count = 0
        self._blocks: dict[int, tuple[weakref.ref[Any], View]] = {}
        self._known: dict[int, bytes] = {}  # what all ranks held when they last heard

    def add(self, owner: Any, view: View) -> None:
        """Follow the memory that `view` finds for `owner`, as long as that lives."""
        self._count += 1
        number = self._count

        def forget(_: Any) -> None:
            self._blocks.pop(number, None)
            self._known.pop(number, None)

        self._blocks[number] = weakref.ref(owner, forget), view

    def changes(self) -> dict[int, bytes]:
        """Return, on rank 0, the blocks that have changed since the last call."""
        changed = {}
        for number, view in self._views():
            now = bytes(view)
            if self._known.get(number) != now:
                changed[number] = self._known[number] = now
        return changed

    def follow(self, changes: dict[int, bytes]) -> None:
        """Copy, on another rank, what rank 0's blocks hold."""
        for number, view in self._views():
            if number in changes:
                self._known[number] = changes[number]
            view[:] = self._known[number]  # unchanged there, it may have been changed here

    def _views(self) -> list[tuple[int, memoryview]]:
        living = [(number, ref(), view) for number, (ref, view) in list(self._blocks.items())]
        return [(number, view(owner)) for number, owner, view in living if owner is not None]


def of_buffer(wrapper: Any) -> memoryview:
    """Return the memory of a `Value`, an `Array` or a barrier."""
    return memoryview(wrapper.create_memoryview()).cast("B")


def of_segment(segment: Any) -> memoryview:
    """Return the memory of a `multiprocessing.shared_memory.SharedMemory`; empty once closed."""
    return memoryview(segment.buf or bytearray())


def of_tensor(x: Any) -> memoryview:
    """Return the whole memory of which a tensor on the CPU is a view."""
    storage = x.untyped_storage()
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    return memoryview(memory).cast("B")
