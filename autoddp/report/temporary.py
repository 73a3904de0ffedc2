"""The folder of temporary files, found without changing what the script finds.

`tempfile` caches its first answer. A variable that the script sets before it asks must count, so
autoddp asks without that cache.
"""

from __future__ import annotations

import os
import tempfile


def named() -> list[str]:
    """Return the folders that variables name, in the order in which `tempfile` tries them."""
    return [os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)]


_found: dict[tuple[str, ...], str] = {}  # by what variables named, the latest last


def look() -> None:
    """Find out where temporary files go now, which writes a file there."""
    if tuple(named()) in _found:
        return
    known = tempfile.tempdir
    try:
        _found[tuple(named())] = tempfile.gettempdir()
    finally:
        tempfile.tempdir = known


look()


def temporary_folder() -> str:
    """Return what `tempfile` has answered to the script, else what was found here."""
    if tempfile.tempdir is not None:
        return os.fsdecode(tempfile.tempdir)
    return _found.get(tuple(named())) or next(reversed(_found.values()))
