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
USUAL = 1 << 25  # the most that an old glibc allows
BLOCK = 1 << 18  # bytes of a block that goes back at once where memory is short
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
ASKED = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def keep_memory(environ: Mapping[str, str]) -> None:
    """Keep what is freed for the next tensors of this process, and of its forks.

    Nothing is done if the user's environment has such settings, or the C library has none.
    """
    _set(environ, KEPT, LARGE, USUAL)


def give_back_memory(environ: Mapping[str, str]) -> None:
    """Give what is freed back to the system, as where parameters are sharded to save memory.

    The blocks that are gathered for a moment would break the heap into pieces.
    """
    _set(environ, BLOCK, BLOCK)


def _set(environ: Mapping[str, str], kept: int, *large: int) -> None:
    library = ctypes.CDLL(None)
    asked = any(name in environ for name in ASKED) or "malloc" in environ.get("GLIBC_TUNABLES", "")
    if asked or not hasattr(library, "mallopt"):
        return
    if any(library.mallopt(M_MMAP_THRESHOLD, size) for size in large):
        library.mallopt(M_TRIM_THRESHOLD, kept)
