"""File systems that are really full, or whose quota is used up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, options: str = "size=64k") -> Iterator[Path]:
    """Mount a file system at `folder`."""
    if os.geteuid():
        pytest.skip("mounting a tmpfs takes root")
    with _mounted(folder, "-t", "tmpfs", "-o", options, "tmpfs"):
        yield folder


@contextmanager
def _mounted(folder: Path, *how: str | Path) -> Iterator[None]:
    folder.mkdir()
    done = subprocess.run(["mount", *how, folder], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{how[-1]} cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
