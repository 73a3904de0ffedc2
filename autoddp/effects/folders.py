"""Folders and names change once, by rank 0; what the script asks of the disk, rank 0 answers."""

from __future__ import annotations

import os
from types import FunctionType
from typing import Any, ClassVar

from autoddp.effects.engine import Mode
from autoddp.effects.entries import Entry, Listing
from autoddp.effects.outward import Outward
from autoddp.effects.overlay import Overlay, named
from autoddp.patching import Call, patch

NAMES = (str, bytes, os.PathLike)
RENAMES = {"rename", "renames", "replace", "move"}
# The names of the arguments for the path that is acted on, and for the one that is made.
FROM = ("path", "src", "self", "name", "base_name", "filename")
TO = ("dst", "extract_dir")
# The changes that a private folder takes. Modes, times and owners of private files do not matter; a
# link exists once rank 0 has made it.
PRIVATE: dict[str, Any] = {
    **{"mkdir": Overlay.mkdir, "rmdir": Overlay.rmdir},
    **dict.fromkeys(("remove", "unlink", "rmtree"), Overlay.remove),
    **dict.fromkeys(("rename", "replace"), Overlay.rename),
}
OPEN_FOLDERS = ("dir_fd", "src_dir_fd", "dst_dir_fd")  # to which a path may be relative


class Folders(Outward):
    """The script's folders: `if not exists: make` branches alike on all ranks, and makes once."""

    name: ClassVar[str] = "folders"
    without: ClassVar[str] = "every rank makes, moves and removes, and asks its own disk"
    libraries: ClassVar[bool] = True

    @patch(
        *("os:mkdir", "os:makedirs", "os:remove", "os:unlink", "os:rmdir", "os:removedirs"),
        *("os:rename", "os:renames", "os:replace", "os:symlink", "os:link", "os:truncate"),
        *("os:chmod", "os:utime", "os:chown", "os:lchown", "os:mkfifo", "os:mknod"),
        *("os:setxattr", "pathlib:Path.touch", "shutil:rmtree"),
        *("shutil:copyfile", "shutil:copy", "shutil:copy2", "shutil:copytree", "shutil:move"),
        *("shutil:make_archive", "shutil:unpack_archive"),
        why="what the script makes, moves and removes, it does once: rank 0 does it",
    )
    def change_once(self, call: Call) -> Any:
        """Make the change on rank 0; all wait for it and raise its error, and overlays follow."""
        if self.effects.mode() is Mode.PASS_THROUGH:
            return call.plain()
        if any(call.named.get(name) is not None for name in OPEN_FOLDERS):
            return call.plain()
        source, target = _given(call, *FROM), _given(call, *TO)
        changed = source if target is None else target
        mode = self.effects.touch(changed)
        if mode is Mode.SYNCED and changed is not None:
            return self._agreed(call, source, changed)
        if mode is Mode.UNSYNCED and changed is not None:
            return self._alone(call, source, target)
        with self.effects.context.internal():  # a cache's folder, with those that it lies in
            return call.plain()

    @patch(
        *("os:stat", "os:lstat", "os:access", "os:readlink", "os:listdir", "os:scandir"),
        *("os:statvfs", "os:pathconf", "os:listxattr", "os:getxattr"),  # as `shutil.copy2` does
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
        if not self._asked(call):
            return self._look(call) if self.effects.reads() else call.plain()
        if name == "scandir":
            folder = os.fspath(call.named.get("path") or ".")
            return Listing(
                self.effects.ask_rank0(call.name, lambda: [Entry(folder, e) for e in call.plain()])
            )
        return self.effects.ask_rank0(call.name, call.plain)

    def _asked(self, call: Call) -> bool:
        """Return whether the script asks, by a path as text, relative to no open folder."""
        # not by `named`, which takes longer than all else: these take the path first
        path = call.args[0] if call.args else call.kwargs.get("path", ".")
        textual = isinstance(path, (str, os.PathLike, type(None)))
        by_handle = call.kwargs.get("dir_fd") is not None
        return textual and not by_handle and self.effects.touch(path) is Mode.SYNCED

    def _agreed(self, call: Call, source: Any, changed: Any) -> Any:
        effects = self.effects
        writers, renames = effects.writers(changed), call.name.rpartition(".")[2] in RENAMES
        answer = effects.do_on_rank0(call.name, call.plain, writers=writers)
        if self.rank not in writers.ranks:
            with effects.context.internal():
                for path in (source, answer or changed) if renames else (changed,):
                    effects.overlay.drop(path, follow=False)
        return answer

    def _alone(self, call: Call, source: Any, target: Any) -> Any:
        """Make a change without the other ranks: rank 0's is real, others change their overlay."""
        change = PRIVATE.get(call.name.rpartition(".")[2])
        if change is None and isinstance(call.wrapped, FunctionType):
            return call.plain()  # Python makes it of the others
        real = source if target is None else target
        if self.rank in self.effects.writers(real, agreed=False).ranks:
            with self.context.internal():
                return call.plain()
        names = [path for path in (source, target) if path is not None]
        return named(lambda: change(self.effects.overlay, *names), *names) if change else None

    def _look(self, call: Call) -> Any:
        """Return what `os.stat` and the like say of what this rank finds there."""
        path = call.named.get("path")
        if call.name.endswith(("listdir", "scandir")):
            found = None if isinstance(path, int) else self.effects.overlay.entries(path or ".")
            if found is None:
                return call.plain()
            if call.name.endswith("scandir"):
                return Listing(Entry(os.fspath(path or "."), one) for one in found)
            return [os.fsencode(one.name) if isinstance(path, bytes) else one.name for one in found]
        if not isinstance(path, NAMES) or call.named.get("dir_fd") is not None:
            return call.plain()
        itself = call.name.endswith(("lstat", "readlink"))
        follow = call.named.get("follow_symlinks", True) and not itself
        at = self.effects.overlay.where(path, follow)
        return call.plain() if at is path else named(lambda: call.changed(path=at), path)


def _given(call: Call, *names: str) -> Any:
    """Return the path among these arguments, None without one."""
    found = (call.named.get(name) for name in names)
    return next((path for path in found if isinstance(path, NAMES)), None)
