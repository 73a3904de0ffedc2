"""A private copy of the current folder, in which relative paths outside of it still work."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from autoddp.errors import BadInput

SKIPPED = {".git", ".hg", ".svn", "__pycache__", "node_modules", ".tox", ".mypy_cache"}
SKIPPED |= {".pytest_cache", ".ruff_cache"}


def copy_in_place(here: Path, root: Path) -> Path:
    """Copy the folder `here` below `root`, and return the copy.

    The folders above `here` are made below `root`, too, with links to their content, so that a
    relative path such as `../data` works in the copy. Virtual environments, caches, version
    control, the copies themselves, special files and unreadable files are not copied.

    Raises:
        BadInput: The disk is full, or the folder changed meanwhile.
    """
    for above in reversed(here.parents):
        parent = root / above.relative_to("/")
        parent.mkdir()
        copied = here.parts[len(above.parts)]
        with suppress(PermissionError):  # a folder that may be entered, but not listed
            for name in os.listdir(above):
                if name != copied:
                    os.symlink(above / name, parent / name)

    def ignored(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if is_ignored(Path(folder, name), root)}

    copy = root / here.relative_to("/")
    try:
        shutil.copytree(here, copy, symlinks=True, ignore=ignored)
    except shutil.Error as error:
        _, to, why = error.args[0][0]
        raise BadInput(
            f"{os.path.basename(to)} cannot be copied ({why}); try again, or set TMPDIR to a "
            "folder with more room"
        ) from None
    return copy


def is_ignored(path: Path, root: Path) -> bool:
    """Return whether a path is not copied to `root`."""
    if path.is_symlink() or (path.is_file() and os.access(path, os.R_OK)):
        return False
    if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        return True
    return path.name in SKIPPED or root.is_relative_to(path) or (path / "pyvenv.cfg").exists()
