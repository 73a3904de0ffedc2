"""The folder of temporary files, found without filling the cache of `tempfile`.

The script may set TMPDIR before it uses `tempfile`, which caches its first answer.
"""

from __future__ import annotations

import os
import tempfile


def named() -> list[str]:
    """Return the folders of environment variables, in the order in which `tempfile` tries them."""
    return [os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)]


_found: dict[tuple[str, ...], str] = {}  # by the folders of variables, the latest last


def look() -> None:
    """Find the current folder of temporary files, which writes a file there."""
    if tuple(named()) in _found:
        return
    cached = tempfile.tempdir
    try:
        _found[tuple(named())] = tempfile.gettempdir()
    finally:
        tempfile.tempdir = cached


look()


def temporary_folder() -> str:
    """Return the folder that `tempfile` has cached for the script, else the one found here."""
    if tempfile.tempdir is not None:
        return os.fsdecode(tempfile.tempdir)
    return _found.get(tuple(named())) or next(reversed(_found.values()))
