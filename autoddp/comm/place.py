"""The rank of this process, for scripts that ask; imports no torch."""

from __future__ import annotations

import os
from typing import Any

from autoddp.comm.world import World


class Place:
    """The world that this process, or the process that forked it, joined."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.given: set[str] = set()  # variables that one plain process would not have
        self.private: str | None = None  # a folder, which the launcher removes
        self.store: Any = None  # that rank 0 serves for calls of processes of another launcher
        self.raised: BaseException | None = None  # what ended the script, until it is shown

    def find(self) -> World:
        """Return the world that a session set, else a launcher's variables', else one process's."""
        if self.world is not None:
            return self.world
        launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
        return World.read(os.environ) if launched else World()


# the one global: anything may ask a process about its place
HERE = Place()


def rank() -> int:
    """Return this process's rank in the job: 0 outside a job.

    Example:
        if autoddp.rank() == 0: ...
    """
    return HERE.find().rank


def world_size() -> int:
    """Return how many ranks the job has: 1 outside a job.

    Example:
        print(autoddp.world_size())
    """
    return HERE.find().world_size
