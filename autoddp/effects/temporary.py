"""Temporary files and folders have the names that rank 0 gave them.

They are made as any file and folder is: rank 0 makes them, the others write to their overlay. What
a thread, or what keeps a cache, makes in the temporary folder is this rank's own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.effects import paths
from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.patching import Call, patch


class Temporary(Outward):
    """The feature that has one temporary file or folder for all ranks, which goes away once."""

    name: ClassVar[str] = "temporary"
    without: ClassVar[str] = "temporary files and folders are each rank's own"

    def setup(self, undo: ExitStack) -> None:
        """Set up with no file of rank 0's that this rank is not to delete."""
        super().setup(undo)
        self._lent: set[str] = set()

    @patch(
        "tempfile:_RandomNameSequence.__next__",
        why="a temporary file or folder has the name that rank 0 gave it",
    )
    def name_once(self, call: Call) -> Any:
        """Return the next name, rank 0's on all ranks."""
        if self.effects.touch() is not Mode.SYNCED:  # multiprocessing names semaphores so
            return call.plain()
        return self.effects.ask_rank0("the name of a temporary file", call.plain)

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
        # one that stays is complete for other ranks where its name is changed, or a program runs
        if hasattr(made, "_closer") and made.delete and not self._deletes(made.name):
            made.delete = made._closer.delete = False
            self._lent.add(made.name)
        return made

    @patch(
        "tempfile:_TemporaryFileWrapper.close",
        "tempfile:_TemporaryFileWrapper.__exit__",
        why="rank 0 deletes the temporary file, and the others forget it",
    )
    def forget(self, call: Call) -> Any:
        """Close the file; a rank above 0 deletes what it has under that name."""
        done, name = call.plain(), call.instance.name
        if name in self._lent:
            self._lent.discard(name)
            with self.context.internal():
                self.effects.overlay.drop(paths.real(name, True))
        return done

    @patch(
        "tempfile:TemporaryDirectory._cleanup",
        why="rank 0 removes the temporary folder, for all",
        hot=True,
    )
    def leave_alone(self, original: Callable[..., Any]) -> Any:
        """Remove a folder that nobody cleaned up at its end, but not one that rank 0 made.

        The method is a plain class method: a wrapper would hold the object whose end it waits for.
        """
        slot = vars(tempfile.TemporaryDirectory)["_cleanup"]

        def cleanup(kind: type[Any], name: str, *args: Any, **kwargs: Any) -> Any:
            with self.context.internal():
                if self._deletes(name):
                    return slot.__get__(None, kind)(name, *args, **kwargs)
                return self.effects.overlay.drop(paths.real(name, True))

        return classmethod(cleanup)

    def _deletes(self, name: str) -> bool:
        """Return whether this rank has made what is there: rank 0, or the first of its node."""
        effects = self.effects
        own = paths.real(name, True) in effects.overlay.private
        return own or self.rank in effects.writers(name, agreed=False).ranks

    def _own(self, call: Call) -> Any:
        with self.context.internal():
            made = call.plain()
            path = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
            if isinstance(path, (str, bytes)):
                self.effects.overlay.private.add(paths.real(path, True))
        return made
