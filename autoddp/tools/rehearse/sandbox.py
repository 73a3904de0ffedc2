"""A private copy of a folder: small files are copied, big ones and folders of data are links."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

BIG = 8 * 2**20  # bytes above which a file is a link
MUCH, MANY = 64 * 2**20, 2000  # bytes and files above which a folder without code is a link
SKIPPED = {
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    "node_modules",
    ".tox",
    ".mypy_cache",
    ".pytest_cache",
}


def copy_folder(source: Path, target: Path, skip: Path) -> None:
    """Make `target` a copy of `source`, in which nothing that is written reaches `source` unseen.

    The guard sees what is written through a link.

    Args:
        source: The user's folder.
        target: The copy, which is made.
        skip: A folder of autoddp's that may lie within `source`.
    """
    target.mkdir()
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.name not in SKIPPED and entry.path != str(skip):
                _copy_entry(entry, target / entry.name, skip)


def _copy_entry(entry: os.DirEntry[str], target: Path, skip: Path) -> None:
    if entry.is_symlink():
        os.symlink(_link(entry.path), target)
    elif entry.is_dir():
        if _is_environment(entry.path):
            return
        if _is_data(entry.path):
            os.symlink(os.path.abspath(entry.path), target)
        else:
            copy_folder(Path(entry.path), target, skip)
    elif stat.S_ISREG(entry.stat().st_mode):
        if entry.stat().st_size > BIG or not os.access(entry.path, os.R_OK):
            os.symlink(os.path.abspath(entry.path), target)
        else:
            shutil.copy2(entry.path, target)


def _link(path: str) -> str:
    """Read where a link points, in full, so that it means the same from anywhere.

    A link to a neighbour in the same folder stays as it is: the neighbour is copied, too.
    """
    text = os.readlink(path)
    return text if "/" not in text else os.path.join(os.path.dirname(os.path.abspath(path)), text)


def _is_environment(path: str) -> bool:
    """Return whether the folder is a virtual environment."""
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _is_data(path: str) -> bool:
    """Return whether the folder holds much, and no code at any depth."""
    size = files = 0
    for folder, _, names in os.walk(path):
        for name in names:
            if name.endswith(".py"):
                return False
            files += 1
            # the names of millions of files are read in seconds, their sizes not
            if size <= MUCH and files <= MANY:
                size += os.lstat(os.path.join(folder, name)).st_size
    return size > MUCH or files > MANY
