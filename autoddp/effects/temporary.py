"""Temporary files and folders have the names that rank 0 draws.

They are made like any other file: by rank 0, and by others in their overlays. Temporary files of
threads, and those that serve one rank's imports, workers or compilers, are private to each rank.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import Any, ClassVar

from autoddp.comm.place import HERE
from autoddp.effects import paths
from autoddp.effects.effect_feature import EffectFeature, EffectRow, ask
from autoddp.effects.ownership import whose
from autoddp.effects.who_acts import Mode
from autoddp.patching import Call, patch


class Temporary(EffectFeature):
    """The feature that makes one temporary file or folder for all ranks, and removes it once."""

    name: ClassVar[str] = "temporary"
    without: ClassVar[str] = "each rank makes its own temporary files and folders"
    rows: ClassVar[tuple[EffectRow, ...]] = (
        ask(
            ("tempfile:_RandomNameSequence.__next__",),
            why="rank 0 draws the name of a temporary file or folder",
        ),
    )

    @patch(
        *("tempfile:mkdtemp", "tempfile:mktemp", "tempfile:mkstemp", "tempfile:NamedTemporaryFile"),
        "tempfile:TemporaryFile",
        why="rank 0 makes temporary files and folders for all ranks",
    )
    def make(self, call: Call) -> Any:
        """Make the file or folder by patched functions; each rank has its own nameless files."""
        folder = call.named.get("dir")
        with self.context.internal():
            tempfile.gettempdir()  # makes test files, which are not the script's
        mode = self.effects.mode(*() if folder is None else (folder,), by=whose)
        own = mode is Mode.PASS_THROUGH or (mode is Mode.UNSYNCED and folder is None)
        if own or call.name == "tempfile.TemporaryFile":
            return self._own(call)
        file = call.plain()
        if hasattr(file, "_closer"):  # each rank deletes the file that it has made
            file._closer.name = self.effects.overlay.find(file.name).at
        return file

    def _own(self, call: Call) -> Any:
        with self.context.internal():
            file = call.plain()
            path = file[1] if isinstance(file, tuple) else getattr(file, "name", file)
            if isinstance(path, (str, bytes)):
                self.effects.overlay.private.add(path := paths.text(path))
                if self.rank and HERE.private and call.named.get("dir") is None:
                    with suppress(OSError):  # by this link the launcher removes it
                        os.symlink(path, os.path.join(HERE.private, os.path.basename(path)))
        return file
