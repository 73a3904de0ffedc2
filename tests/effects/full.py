"""A disk that is really full, a quota that is used up, for tests of what then happens."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, options: str = "size=64k") -> Iterator[Path]:
    """A file system of its own at `folder`."""
    if os.geteuid():
        pytest.skip("mounting a tmpfs takes root")
    with _mounted(folder, "-t", "tmpfs", "-o", options, "tmpfs"):
        yield folder


@contextmanager
def rationed(folder: Path) -> Iterator[Path]:
    """A folder with a quota of 1 MB, which binds root, too: btrfs has such."""
    if os.geteuid() or shutil.which("mkfs.btrfs") is None:
        pytest.skip("a quota takes root and btrfs-progs")
    image = folder.with_suffix(".image")
    with open(image, "wb") as file:
        file.truncate(2**28)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    with _mounted(folder, "-o", "loop", image):
        inner = folder / "inner"
        limit = ["btrfs", "qgroup", "limit", "1M", inner]
        for command in (
            ["btrfs", "subvolume", "create", inner],
            ["btrfs", "quota", "enable", folder],
            limit,
        ):
            subprocess.run(command, check=True, capture_output=True)
        yield inner


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
