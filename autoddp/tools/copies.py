"""A private copy of the current folder, from which `..` leads to what is really there."""

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

    The folders above it are made below `root`, too, with links to all that they really hold, so
    that a relative path that leaves the folder means the same in the copy. Environments, caches,
    version control, the copies themselves, and what is no file or cannot be read are not copied.

    Raises:
        BadInput: There is no room for it, or it changes meanwhile.
    """
    for above in reversed(here.parents):
        made = root / above.relative_to("/")
        made.mkdir()
        inside = here.parts[len(above.parts)]
        with suppress(PermissionError):  # a folder that others may enter, but not list
            for name in os.listdir(above):
                if name != inside:
                    os.symlink(above / name, made / name)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if is_left_out(Path(folder, name), root)}

    copy = root / here.relative_to("/")
    try:
        shutil.copytree(here, copy, symlinks=True, ignore=left_out)
    except shutil.Error as error:
        _, to, why = error.args[0][0]
        raise BadInput(
            f"{os.path.basename(to)} cannot be copied ({why}); try again, or set TMPDIR to a "
            "folder with more room"
        ) from None
    return copy


def is_left_out(path: Path, root: Path) -> bool:
    """Return whether a path is not copied to `root`."""
    if path.is_symlink() or (path.is_file() and os.access(path, os.R_OK)):
        return False
    if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        return True
    return path.name in SKIPPED or root.is_relative_to(path) or (path / "pyvenv.cfg").exists()
