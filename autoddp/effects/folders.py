"""Folders and names change once, by rank 0; what the script asks of the disk, rank 0 answers."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from typing import Any, ClassVar

from autoddp.effects.engine import Mode
from autoddp.effects.entries import Entry, Listing
from autoddp.effects.outward import Outward
from autoddp.effects.unsynced import SOURCE, TARGET, UnsyncedChange, at, given
from autoddp.patching import Call, patch

RENAMES = {"rename", "renames", "replace", "move"}
# The names of the arguments for the path that is acted on, and for the one that is made.
FROM = ("path", "src", "self", "name", "base_name", "filename")
TO = ("dst", "extract_dir")


class Folders(Outward):
    """The script's folders: `if not exists: make` branches alike on all ranks, and makes once."""

    name: ClassVar[str] = "folders"
    without: ClassVar[str] = "every rank makes, moves and removes, and asks its own disk"
    libraries: ClassVar[bool] = True

    def setup(self, undo: ExitStack) -> None:
        """Prepare for changes that this rank makes without the others."""
        super().setup(undo)
        self.alone = UnsyncedChange(self.effects)

    @patch(
        *("os:mkdir", "os:makedirs", "os:remove", "os:unlink", "os:rmdir", "os:removedirs"),
        *("os:rename", "os:renames", "os:replace", "os:symlink", "os:link", "os:truncate"),
        *("os:chmod", "os:utime", "os:chown", "os:lchown", "os:mkfifo", "os:mknod"),
        *("os:setxattr", "os:removexattr", "pathlib:Path.touch", "shutil:rmtree"),
        *("shutil:copyfile", "shutil:copy", "shutil:copy2", "shutil:copytree", "shutil:move"),
        *("shutil:make_archive", "shutil:unpack_archive"),
        why="what the script makes, moves and removes, it does once: rank 0 does it",
    )
    def change_once(self, call: Call) -> Any:
        """Make the change on rank 0; all wait for it and raise its error, and overlays follow."""
        if self.effects.mode() is Mode.PASS_THROUGH:
            return call.plain()
        source, target = given(call, *FROM), given(call, *TO)
        changed = at(call, source, SOURCE) if target is None else at(call, target, TARGET)
        mode = self.effects.touch(changed)
        if mode is Mode.SYNCED and changed is not None:
            return self._agreed(call, source, changed)
        if mode is Mode.UNSYNCED and changed is not None:
            return self.alone.change(call)
        with self.effects.context.internal():  # a cache's folder, with those that it lies in
            return call.plain()

    @patch(
        *("os:stat", "os:lstat", "os:access", "os:readlink", "os:listdir", "os:scandir"),
        *("os:statvfs", "os:pathconf", "os:listxattr", "os:getxattr"),
        # Python 3.13 keeps these by names of its own
        *("glob:_StringGlobber.lstat", "glob:_StringGlobber.scandir"),
        optional=True,
        why="what is there, in which order, and what it is, the script asks once: rank 0 answers",
    )
    def ask_once(self, call: Call) -> Any:
        """Return rank 0's answer; `exists`, `getsize`, `glob`, `walk` and pathlib ask these."""
        name = call.wrapped.__name__
        if call.wrapped.__module__ == "glob":
            return call.plain()  # Python 3.14: a function that asks os.scandir
        if name.endswith("xattr") or not self._asked(call):  # attributes: of each rank's own disk
            return self.alone.ask(call) if self.effects.reads() else call.plain()
        if name == "scandir":
            folder = os.fspath(call.named.get("path") or ".")
            return Listing(
                self.effects.ask_rank0(call.name, lambda: [Entry(folder, e) for e in call.plain()])
            )
        return self.effects.ask_rank0(call.name, call.plain)

    @patch(
        "os:chdir", why="a folder that a library made is rank 0's: others enter it when it is there"
    )
    def enter(self, call: Call) -> Any:
        """Enter rank 0's folder; one of this rank's own, where rank 0 makes none of that name."""
        return self.alone.enter(call) if self.effects.reads() else call.plain()

    def _asked(self, call: Call) -> bool:
        """Return whether the script asks, by a path as text, relative to no open folder."""
        # not by `named`, which takes longer than all else: these take the path first
        path = call.args[0] if call.args else call.kwargs.get("path", ".")
        textual = isinstance(path, (str, os.PathLike, type(None)))
        by_handle = call.kwargs.get("dir_fd") is not None
        return textual and not by_handle and self.effects.touch(path) is Mode.SYNCED

    def _agreed(self, call: Call, source: Any, changed: Any) -> Any:
        effects, overlay = self.effects, self.effects.overlay
        writers, was = effects.writers(changed), None
        renames = call.name.rpartition(".")[2] in RENAMES
        if self.rank not in writers.ranks and renames and not overlay.idle():
            with suppress(OSError):  # rank 0 raises it
                was = overlay.find(at(call, source, SOURCE), follow=False).name
        answer = effects.do_on_rank0(call.name, call.plain, writers=writers)
        if self.rank in writers.ranks:
            return answer
        with effects.context.internal():
            if was is not None:
                overlay.move(was, answer or changed)
            else:
                overlay.drop(changed, follow=False)
        return answer
