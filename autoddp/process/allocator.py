"""The C library's allocator: a rank keeps the memory that its tensors have left.

By default glibc gives memory back to the system whenever much of it is free at the end of the heap,
which it is after every backward. For the next step's tensors the system then has to map new pages
and fill them with zeros, which can take nine tenths of the time of an elementwise operation on the
CPU. See `mallopt(3)`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

KEPT = (1 << 31) - 1  # bytes that are free at the end of the heap before any go back: an int's most
LARGE = 1 << 28  # bytes of a block that is the system's own, and goes back when it is freed
USUAL = 1 << 25  # the most of such bytes to which glibc itself goes, and all that old ones allow
LIBRARY = ctypes.CDLL(None)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
ASKED = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def keep_memory(environ: Mapping[str, str]) -> bool:
    """Keep what is freed for the next tensors of this process, and of its forks.

    Returns:
        Whether it does: not if the user's environment has such settings, or the C library has none.
    """
    asked = any(name in environ for name in ASKED) or "malloc" in environ.get("GLIBC_TUNABLES", "")
    if asked or not hasattr(LIBRARY, "mallopt"):
        return False
    large = LIBRARY.mallopt(M_MMAP_THRESHOLD, LARGE) or LIBRARY.mallopt(M_MMAP_THRESHOLD, USUAL)
    return bool(large and LIBRARY.mallopt(M_TRIM_THRESHOLD, KEPT))


def give_back() -> None:
    """Release what is kept; from here on, about as much is kept as by glibc itself."""
    LIBRARY.mallopt(M_MMAP_THRESHOLD, USUAL)
    LIBRARY.mallopt(M_TRIM_THRESHOLD, 2 * USUAL)
    LIBRARY.malloc_trim(0)
