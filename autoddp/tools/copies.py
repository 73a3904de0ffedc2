"""A private copy of the current folder, from which `..` leads to what is really there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from autoddp.errors import BadInput

SKIPPED = {".git", ".hg", ".svn", "__pycache__", "node_modules", ".tox", ".mypy_cache"}
SKIPPED |= {".pytest_cache", ".ruff_cache"}
SPARE = 2**28  # bytes that are left free beside a copy


def copy_in_place(here: Path, root: Path) -> Path:
    """Copy the folder `here` below `root`, and return the copy.

    The folders above it are there, too, below `root`, and hold links to all that they really hold.
    So a relative path that leaves the folder means the same in the copy.

    Raises:
        BadInput: There is no room for it, or it changes meanwhile.
    """
    left_out = chooser(root)
    size, free = folder_size(here, left_out), shutil.disk_usage(root.parent).free
    if size + SPARE > free:
        raise BadInput(
            f"{root.parent} has {free / 1e9:.1f} GB left, and each run has a copy of this folder "
            f"there, of {size / 1e9:.1f} GB; set TMPDIR to a folder with more room, or move large "
            "data elsewhere and leave a link to it"
        )
    for above in reversed(here.parents):
        made = root / above.relative_to("/")
        made.mkdir()
        inside = here.parts[len(above.parts)]
        with suppress(PermissionError):  # a folder that others may enter, but not list
            for name in os.listdir(above):
                if name != inside:
                    os.symlink(above / name, made / name)
    copy = root / here.relative_to("/")
    try:
        shutil.copytree(here, copy, symlinks=True, ignore=left_out)
    except shutil.Error as error:
        _, to, why = error.args[0][0]
        raise BadInput(f"{os.path.basename(to)} cannot be copied ({why}); try again") from None
    return copy


def chooser(root: Path) -> Callable[[str, list[str]], set[str]]:
    """Return what tells which names in a folder are not copied.

    These are environments, caches, version control, what lies above the copies themselves, and what
    is no file or cannot be read.
    """

    def left_out(path: Path) -> bool:
        if path.is_symlink() or (path.is_file() and os.access(path, os.R_OK)):
            return False
        if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
            return True
        ours = path.name in SKIPPED or root.is_relative_to(path)
        return ours or (path / "pyvenv.cfg").exists()

    return lambda folder, names: {name for name in names if left_out(Path(folder, name))}


def folder_size(folder: Path, left_out: Callable[[str, list[str]], set[str]]) -> int:
    """Add up the bytes of the files that a copy of the folder takes."""
    size = 0
    for top, folders, files in os.walk(folder):
        gone = left_out(top, folders + files)
        folders[:] = [name for name in folders if name not in gone]
        for name in {*files} - gone:
            with suppress(FileNotFoundError):  # it went meanwhile
                size += os.lstat(os.path.join(top, name)).st_size
    return size
