"""The cores of this node, and the ranks and threads that share them."""

from __future__ import annotations

import os


def here() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def threads(ranks: int) -> str:
    """Return how many threads each of a node's ranks has, unless the user says so."""
    return str(max(1, here() // ranks))


def crowded(ranks: int, cores: int) -> str:
    """Return a warning where more than two ranks share each core; else nothing."""
    if ranks <= 2 * cores:
        return ""
    shared = "only core" if cores == 1 else f"{cores} cores"
    return (
        f"{ranks} ranks share the {shared} of this node, so most of them wait at any time; "
        f"--nproc {cores} is faster"
    )
