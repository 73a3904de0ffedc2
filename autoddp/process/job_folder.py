"""The private folder of one job on this node, which its ranks find at `HERE.private`.

It holds the ranks' scratch, and links to temporary files and folders that they make elsewhere.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress

from autoddp.comm.place import HERE


def make() -> None:
    """Make the folder just before the ranks start, and a new one when they start again."""
    clear()
    HERE.private = tempfile.mkdtemp(prefix="autoddp-")


def clear() -> None:
    """Remove the folder and what is linked in it, once all ranks of this node have ended.

    A checkpoint that a rank was about to write goes, too.
    """
    if HERE.private is None:
        return
    for entry in os.scandir(HERE.private):
        if entry.is_symlink():
            target = os.readlink(entry.path)
            shutil.rmtree(target, ignore_errors=True)  # if it is still there, and a folder
            with suppress(OSError):
                os.unlink(target)
    shutil.rmtree(HERE.private)
    HERE.private = None
