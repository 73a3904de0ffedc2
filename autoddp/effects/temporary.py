"""Temporary files and folders have the names that rank 0 gave them."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.effects import paths
from autoddp.effects.engine import Mode, Writers
from autoddp.effects.outward import Outward
from autoddp.patching import Call, patch


class Temporary(Outward):
    """The feature that has one temporary file or folder for all ranks, which goes away once."""

    name: ClassVar[str] = "temporary"
    without: ClassVar[str] = "temporary files and folders are each rank's own"

    def setup(self, undo: ExitStack) -> None:
        """Set up with nothing of rank 0's lent to this rank yet."""
        super().setup(undo)
        self._lent: set[str] = set()

    @patch(
        "tempfile:mkdtemp",
        "tempfile:mktemp",
        why="ranks share the temporary folder that rank 0 made",
    )
    def name_once(self, call: Call) -> Any:
        """Return the name that rank 0 gave, on all ranks."""
        if self._mode(call) is not Mode.SYNCED:
            return self._own(call)
        path = self.effects.ask_rank0(call.name, call.plain)
        writers = self.effects.writers(path)
        if self.rank not in writers.ranks:
            self._lent.add(path)
        if call.name.endswith("mkdtemp"):
            self.effects.repeat(call.name, lambda: os.mkdir(path, 0o700), writers)
        return path

    @patch("tempfile:mkstemp", why="a temporary file has the name that rank 0 gave it")
    def open_once(self, call: Call) -> Any:
        """Open rank 0's file; the others write to their scratch under that name."""
        effects = self.effects
        if self._mode(call) is not Mode.SYNCED:
            return self._own(call)
        if self.rank == 0:
            number, path = effects.do_on_rank0(call.name, call.plain, tell=lambda made: made[1])
        else:
            path = effects.do_on_rank0(call.name, call.plain)
        writers = effects.writers(path)
        made = self._made_again(call, path, writers)
        if made is not None:
            number = made[0]
        elif self.rank:
            with effects.context.internal():
                at = effects.overlay.to_write(path, keep=False)
                number = os.open(at, os.O_RDWR | os.O_CREAT, 0o600)
        return number, path

    @patch("tempfile:NamedTemporaryFile", why="a temporary file has the name that rank 0 gave it")
    def named_once(self, call: Call) -> Any:
        """Open rank 0's file; the others write to their scratch under its name."""
        effects = self.effects
        mode = self._mode(call)
        if mode is Mode.UNSYNCED and self.rank:
            return self._named_alone(call)
        if mode is not Mode.SYNCED:
            return self._own(call)
        made = effects.do_on_rank0(call.name, call.plain, tell=lambda made: made.name)
        path = made if self.rank else made.name
        again = self._made_again(call, path, effects.writers(path))
        if again is not None or not self.rank:
            return again or made
        with effects.context.internal():
            file = call.changed(dir=os.path.dirname(effects.overlay.new(path)))
            effects.overlay.link_to(file.name, path)  # its own end deletes it by this name
            file.name = path
        return file

    @patch("tempfile:TemporaryFile", why="a file without a name is each rank's own")
    def open_own(self, call: Call) -> Any:
        """Open a file of this rank's own; what is opened on the way is no file of the user's."""
        return self._own(call)

    @patch(
        "tempfile:TemporaryDirectory.cleanup", why="rank 0 removes the temporary folder, for all"
    )
    def remove_once(self, call: Call) -> Any:
        """Remove the folder on rank 0, once all ranks are through with it."""
        folder = call.instance
        if self.effects.touch() is not Mode.SYNCED:
            return call.plain()
        if self.rank and folder.name in self._lent:
            folder._finalizer.detach()
        writers = self.effects.writers(folder.name)
        self.effects.do_on_rank0("TemporaryDirectory.cleanup", call.plain, None, writers)
        self._remove(folder.name)
        return None

    @patch(
        "tempfile:TemporaryDirectory._cleanup",
        why="rank 0 removes the temporary folder, for all",
        hot=True,
    )
    def leave_alone(self, original: Any) -> Any:
        """Remove a folder that nobody cleaned up at its end, but not one that rank 0 made.

        The method is a plain class method: a wrapper would hold the object whose end it waits for.
        """
        slot, lent, effects = (
            vars(tempfile.TemporaryDirectory)["_cleanup"],
            self._lent,
            self.effects,
        )

        def cleanup(kind: type[Any], name: str, *args: Any, **kwargs: Any) -> Any:
            if effects.rank and name in lent:
                return self._remove(name)
            with effects.context.internal():
                return slot.__get__(None, kind)(name, *args, **kwargs)

        return classmethod(cleanup)

    def _remove(self, path: str) -> None:
        """Forget what this rank has in a folder that is removed."""
        with self.effects.context.internal():
            self.effects.overlay.drop(paths.real(path, True))

    def _made_again(self, call: Call, path: str, writers: Writers) -> Any:
        """Make on nodes without rank 0's folder the file that rank 0 has made; return it there."""
        made: list[Any] = []

        def make() -> None:
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            if call.name.endswith("mkstemp"):
                made.append((number, path))
                return
            os.close(number)
            file = call.changed(dir=os.path.dirname(path))
            os.rename(file.name, path)
            file.name = file._closer.name = path
            made.append(file)

        self.effects.repeat(call.name, make, writers)
        return made[0] if made else None

    def _mode(self, call: Call) -> Mode:
        """Return the mode of a call, by the folder that it names."""
        folder = call.named.get("dir")
        if folder is None:
            with self.context.internal():
                tempfile.gettempdir()  # on all ranks: rank 0, which makes the file, will ask
        return self.effects.touch() if folder is None else self.effects.touch(folder)

    def _named_alone(self, call: Call) -> Any:
        """Open a file of this rank's own under a name of its own."""
        effects = self.effects
        folder = os.fsdecode(call.named["dir"])
        place = effects.overlay.room(folder)
        with effects.context.internal():
            file = call.changed(dir=place)
        file.name = os.path.join(paths.text(folder), os.path.basename(file.name))
        return file

    def _own(self, call: Call) -> Any:
        if self._mode(call) is Mode.UNSYNCED and call.named.get("dir") is not None:
            return call.plain()
        with self.effects.context.internal():
            made = call.plain()
        if call.name == "tempfile.TemporaryFile":
            return made
        path = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
        if isinstance(path, (str, bytes)):
            self.effects.overlay.private.add(paths.real(path, True))
        return made
