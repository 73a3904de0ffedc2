"""This node's private folder for one job: what ranks leave in it when they are killed goes with it."""

from __future__ import annotations

import os
import shutil
import tempfile


class JobFolder:
    """Ranks keep their scratch in it, and a link to each folder that they make elsewhere for a moment."""

    def __init__(self) -> None:
        self.folder: str | None = None

    def make(self) -> None:
        """Just before the ranks start, and anew when they start again."""
        self.clear()
        self.folder = tempfile.mkdtemp(prefix="autoddp-")

    def clear(self) -> None:
        """All ranks of this node have ended: a checkpoint that one was about to write goes, too."""
        if self.folder is None:
            return
        for entry in os.scandir(self.folder):
            if entry.is_symlink():
                shutil.rmtree(os.readlink(entry.path), ignore_errors=True)  # if it is still there
        shutil.rmtree(self.folder)
        self.folder = None
