"""Import torch and the modules of a rank once, in the launcher, for all ranks of a node."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports_for_all() -> Iterator[None]:
    """Exclude imported objects from garbage collection, here and in the ranks.

    Collections take a fifth of the time of torch's import. In a forked rank they would copy all
    pages with such objects.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_torch(several: bool) -> None:
    """Import torch; on several nodes without the warnings of its sockets about DNS."""
    level = "TORCH_CPP_LOG_LEVEL"  # read only at this import, and removed after it
    quiet = several and level not in os.environ
    if quiet:
        os.environ[level] = "ERROR"
    import torch  # noqa: F401

    if quiet:
        del os.environ[level]
