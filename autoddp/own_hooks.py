"""Hooks of autoddp, which leave the numbers of the script's own hooks as they are in one process.

torch numbers the handles of all hooks in one sequence, and a script sees these numbers: they are
the keys of a module's hooks, which tutorials print. Those of autoddp come from a sequence far
above, so that none is a key twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_next = 1 << 40  # the number of autoddp's next handle


@contextmanager
def own_hooks() -> Iterator[None]:
    """Register hooks of autoddp inside."""
    from torch.utils.hooks import RemovableHandle  # the launcher chooses when torch is imported

    global _next
    before, RemovableHandle.next_id = RemovableHandle.next_id, _next
    try:
        yield
    finally:
        _next, RemovableHandle.next_id = RemovableHandle.next_id, before
