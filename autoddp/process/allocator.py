"""The C library's allocator: a rank keeps the memory that its tensors have left.

By default glibc gives memory back to the system whenever much of it is free at the end of the heap,
which it is after every backward. The next step's tensors then come to pages that the system has to
find and to fill with zeros: of an elementwise operation on the CPU that can be nine tenths of the
time. See `mallopt(3)`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache

KEPT = (1 << 31) - 1  # bytes that are free at the end of the heap before any go back: an int's most
LARGE = 1 << 28  # bytes of a block that is the system's own, and goes back when it is freed
USUAL = 1 << 25  # the most of such bytes to which glibc itself goes, and all that old ones allow
LIBRARY = ctypes.CDLL(None)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
ASKED = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
TUNED = "glibc.malloc."  # in GLIBC_TUNABLES


def keep_memory(environ: Mapping[str, str]) -> bool:
    """Keep what is freed for the next tensors of this process, but not of its children.

    Returns:
        Whether it does: not where the user's environment says what is kept, nor where the C library
        has no such setting.
    """
    asked = any(name in environ for name in ASKED) or TUNED in environ.get("GLIBC_TUNABLES", "")
    if asked or not hasattr(LIBRARY, "mallopt"):
        return False
    large = LIBRARY.mallopt(M_MMAP_THRESHOLD, LARGE) or LIBRARY.mallopt(M_MMAP_THRESHOLD, USUAL)
    if not large or not LIBRARY.mallopt(M_TRIM_THRESHOLD, KEPT):
        return False
    _leave_children_out()
    return True


def give_back() -> None:
    """Let go of what is kept; from here on, about as much is as glibc itself would come to keep."""
    _as_usual()
    LIBRARY.malloc_trim(0)


def _as_usual() -> None:
    LIBRARY.mallopt(M_MMAP_THRESHOLD, USUAL)
    LIBRARY.mallopt(M_TRIM_THRESHOLD, 2 * USUAL)


@cache
def _leave_children_out() -> None:
    os.register_at_fork(after_in_child=_as_usual)
