"""Temporary files and folders have the names that rank 0 gave them.

They are made as any file and folder is: rank 0 makes them, the others write to their overlay. What
a thread, or what keeps a cache, makes in the temporary folder is this rank's own.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import Any, ClassVar

from autoddp.comm.place import HERE
from autoddp.effects import paths
from autoddp.effects.engine import Mode
from autoddp.effects.outward import EffectRow, Outward, ask
from autoddp.patching import Call, patch


class Temporary(Outward):
    """The feature that has one temporary file or folder for all ranks, which goes away once."""

    name: ClassVar[str] = "temporary"
    without: ClassVar[str] = "temporary files and folders are each rank's own"
    rows: ClassVar[tuple[EffectRow, ...]] = (
        ask(
            ("tempfile:_RandomNameSequence.__next__",),
            why="a temporary file or folder has the name that rank 0 gave it",
        ),
    )

    @patch(
        *("tempfile:mkdtemp", "tempfile:mktemp", "tempfile:mkstemp", "tempfile:NamedTemporaryFile"),
        "tempfile:TemporaryFile",
        why="ranks share the temporary folders and files that rank 0 made",
    )
    def make(self, call: Call) -> Any:
        """Make it of parts that all ranks agree on; a nameless file is each rank's own."""
        folder = call.named.get("dir")
        with self.context.internal():
            tempfile.gettempdir()  # tries folders out, which the script does not
        mode = self.effects.touch(*() if folder is None else (folder,))
        own = mode is Mode.PASS_THROUGH or (mode is Mode.UNSYNCED and folder is None)
        if own or call.name == "tempfile.TemporaryFile":
            return self._own(call)
        made = call.plain()
        if hasattr(made, "_closer"):  # each rank deletes what it has made
            made._closer.name = self.effects.overlay.find(made.name).at
        return made

    def _own(self, call: Call) -> Any:
        with self.context.internal():
            made = call.plain()
            path = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
            if isinstance(path, (str, bytes)):
                self.effects.overlay.private.add(path := paths.text(path))
                if self.rank and HERE.private and call.named.get("dir") is None:
                    with suppress(OSError):  # by this link the launcher removes the folder
                        os.symlink(path, os.path.join(HERE.private, os.path.basename(path)))
        return made
