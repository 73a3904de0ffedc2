"""The folder of temporary files, looked for without an answer that the script would find.

`tempfile` keeps the first answer. A variable that the script sets before it asks itself must count,
so autoddp asks past that memory.
"""

from __future__ import annotations

import os
import tempfile


def named() -> list[str]:
    """Return the folders that variables name, in the order in which `tempfile` tries them."""
    return [os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)]


def _look() -> str:
    known = tempfile.tempdir
    try:
        return tempfile.gettempdir()
    finally:
        tempfile.tempdir = known


_FOUND = _look()  # that writes there, which a script's open() would note


def temporary_folder() -> str:
    """Return what the script has been told, if it has asked, else what was found at our import."""
    return _FOUND if tempfile.tempdir is None else os.fsdecode(tempfile.tempdir)
