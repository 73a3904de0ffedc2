"""The C library's allocator: a rank keeps the memory that its tensors have left.

By default glibc gives memory back to the system whenever much of it is free at the end of the heap,
which it is after every backward. The next step's tensors then come to pages that the system has to
find and to fill with zeros: of an elementwise operation on the CPU that can be nine tenths of the
time. torch's own launcher for CPUs (`torch.backends.xeon.run_cpu`) takes another allocator for this
reason; here the settings of the C library's own are enough, see `mallopt(3)`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

KEPT = (1 << 31) - 1  # bytes that are free at the end of the heap before any go back: an int's most
LARGE = 1 << 28  # bytes of a block that is the system's own, and goes back when it is freed
USUAL = 1 << 25  # the most of such bytes to which glibc itself goes, and all that old ones allow
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
ASKED = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
TUNED = "glibc.malloc."  # in GLIBC_TUNABLES


def keep_memory(environ: Mapping[str, str]) -> bool:
    """Keep what is freed for the next tensors of this process, and of those that it forks.

    Returns:
        Whether it does: not where the user's environment says what is kept, nor where the C library
        has no such setting. To an allocator that is preloaded it says nothing.
    """
    library = ctypes.CDLL(None)
    asked = any(name in environ for name in ASKED) or TUNED in environ.get("GLIBC_TUNABLES", "")
    if asked or not hasattr(library, "mallopt"):
        return False
    large = library.mallopt(M_MMAP_THRESHOLD, LARGE) or library.mallopt(M_MMAP_THRESHOLD, USUAL)
    return bool(large and library.mallopt(M_TRIM_THRESHOLD, KEPT))


def give_back() -> None:
    """Let go of what is kept; from here on, about as much is as glibc itself would come to keep."""
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, USUAL)
    library.mallopt(M_TRIM_THRESHOLD, 2 * USUAL)
    library.malloc_trim(0)
