"""The private folder of one job on this node, removed with all that killed ranks leave in it."""

from __future__ import annotations

import os
import shutil
import tempfile


class JobFolder:
    """The folder of the ranks' scratch, and of links to short-lived folders they make elsewhere."""

    def __init__(self) -> None:
        self.folder: str | None = None

    def make(self) -> None:
        """Make the folder just before the ranks start, and a new one when they start again."""
        self.clear()
        self.folder = tempfile.mkdtemp(prefix="autoddp-")

    def clear(self) -> None:
        """Remove the folder once all ranks of this node have ended, and the folders linked in it.

        A checkpoint that a rank was about to write goes, too.
        """
        if self.folder is None:
            return
        for entry in os.scandir(self.folder):
            if entry.is_symlink():
                shutil.rmtree(os.readlink(entry.path), ignore_errors=True)  # if it is still there
        shutil.rmtree(self.folder)
        self.folder = None
