"""The import of torch, and of what runs a rank: once, by the launcher, for all ranks of a node."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports_for_all() -> Iterator[None]:
    """Let no search for garbage go through what is imported for all ranks, now or in a rank.

    Searches take a fifth of the time of torch's import; in a rank, a fork, each would copy what it
    goes through, page by page.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_torch(several: bool) -> None:
    """Import torch once for all ranks; on several nodes mute its sockets' complaints of DNS."""
    level = "TORCH_CPP_LOG_LEVEL"  # read once, at this import; then no longer for others to see
    quiet = several and level not in os.environ
    if quiet:
        os.environ[level] = "ERROR"
    import torch  # noqa: F401

    if quiet:
        del os.environ[level]
