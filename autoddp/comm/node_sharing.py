"""How the ranks of a node come to share memory: rank 0 makes it, the others open it by `/proc`."""

from __future__ import annotations

import json
import os
import posix
from collections.abc import Callable
from typing import Any

from autoddp.comm import node_barrier
from autoddp.comm.node_memory import NodeMemory, size

Place = tuple[str, list[int]]  # the path of a descriptor, and which file that is


def nameless(count: int) -> int:
    """Return a descriptor of so many bytes; a container's small /dev/shm does not limit it."""
    descriptor = os.memfd_create("autoddp", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, count)
    return descriptor


def supported() -> bool:
    """Return whether this system has memory without a name, and semaphores with a deadline."""
    return hasattr(os, "memfd_create") and node_barrier.supported()


def share(
    rank: int, count: int, many: int, confer: Callable[[str, bytes], bytes]
) -> tuple[list[NodeMemory], str]:
    """Share so many memories between the ranks of a node, all of which call this.

    Args:
        rank: The number of this rank.
        count: The number of ranks.
        many: The number of memories.
        confer: Gathers each rank's JSON text into one JSON list, as `Group.confer` does.

    Returns:
        This rank's view of each; if a rank has none, on all ranks none, and why.
    """

    def all_say(said: Any) -> list[Any]:
        found: list[Any] = json.loads(confer("shared memory", json.dumps(said).encode()))
        return found

    ranks = list(range(count))
    made, failed = _tried(lambda: _make(ranks, many) if rank == 0 else [])
    places = all_say([_place(memory) for memory in made])[0]
    if rank and not failed:
        made, failed = _tried(lambda: [_open(rank, ranks, *place) for place in places])
    said = all_say(failed)  # once all hold their locks
    if any(said):
        return [], next(f"rank {other}: {why}" for other, why in enumerate(said) if why)
    return made, ""


def _tried(act: Callable[[], list[NodeMemory]]) -> tuple[list[NodeMemory], str]:
    """Return what `act` returns, and why it failed."""
    try:
        if not supported():
            return [], "its system lacks memfd_create or sem_clockwait"
        return act(), ""
    except (OSError, ValueError) as error:
        return [], getattr(error, "strerror", None) or str(error)


def _make(ranks: list[int], many: int) -> list[NodeMemory]:
    made = [NodeMemory(0, ranks, nameless(size(len(ranks)))) for _ in range(many)]
    for memory in made:
        memory.begin()
    return made


def _open(rank: int, ranks: list[int], path: str, which: list[int]) -> NodeMemory:
    memory = NodeMemory(rank, ranks, posix.open(path, os.O_RDWR | os.O_CLOEXEC))
    if _place(memory)[1] != which:  # in a container of its own, that is another file
        raise OSError("ranks of one machine do not reach each other")
    return memory


def _place(memory: NodeMemory) -> Place:
    """Return where other processes find a memory, and what tells it from every other file."""
    there = os.fstat(memory.descriptor)
    return f"/proc/{posix.getpid()}/fd/{memory.descriptor}", [there.st_dev, there.st_ino]
