"""A private copy of the current folder, from which `..` leads to what is really there."""

from __future__ import annotations

import os
import shutil
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
        BadInput: There is no room for it.
    """
    size, free = folder_size(here, root), shutil.disk_usage(root.parent).free
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
    copy_folder(here, copy, root)
    return copy


def left_out(folder: Path, root: Path) -> bool:
    """Return whether a folder is not copied: environments, caches, version control, our own."""
    if folder.name in SKIPPED or root.is_relative_to(folder):
        return True
    return not os.access(folder, os.R_OK | os.X_OK) or (folder / "pyvenv.cfg").exists()


def folder_size(folder: Path, root: Path) -> int:
    """Add up the bytes of the files that a copy of the folder takes."""
    size = 0
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not left_out(Path(top, name), root)]
        for name in files:
            with suppress(FileNotFoundError):  # it went meanwhile
                size += os.lstat(os.path.join(top, name)).st_size
    return size


def copy_folder(source: Path, target: Path, root: Path) -> None:
    """Copy all that a folder holds and that can be read; links stay links."""
    target.mkdir()
    with os.scandir(source) as entries:
        for entry in entries:
            path, to = Path(entry.path), target / entry.name
            if entry.is_symlink():
                os.symlink(os.readlink(path), to)
            elif entry.is_dir():
                if not left_out(path, root):
                    copy_folder(path, to, root)
            elif entry.is_file() and os.access(path, os.R_OK):
                with suppress(FileNotFoundError):  # as above
                    shutil.copy2(path, to)
