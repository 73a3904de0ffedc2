"""Folders and names are changed once, by rank 0, which also answers queries of the disk."""

from __future__ import annotations

import os
from types import FunctionType
from typing import Any, ClassVar

from autoddp.effects.effect_feature import EffectFeature
from autoddp.effects.entries import Entry, Listing, facts
from autoddp.effects.overlay import Overlay, named
from autoddp.effects.ownership import whose
from autoddp.effects.who_acts import Mode
from autoddp.patching import Call, patch

NAMES = (str, bytes, os.PathLike)
RENAMES = {"rename", "renames", "replace", "move"}
# The names of the arguments for the source path, and for the path that is made.
FROM = ("path", "src", "old", "self", "name", "base_name", "filename")
TO = ("dst", "new", "extract_dir")
# The changes that are made in an overlay. Modes, times and owners of private files do not matter; a
# link exists once rank 0 has made it.
PRIVATE: dict[str, Any] = {
    **{"mkdir": Overlay.mkdir, "rmdir": Overlay.rmdir},
    **dict.fromkeys(("remove", "unlink", "rmtree"), Overlay.remove),
    **dict.fromkeys(("rename", "replace"), Overlay.rename),
}
OPEN_FOLDERS = ("dir_fd", "src_dir_fd", "dst_dir_fd")  # arguments that a path is relative to


class Folders(EffectFeature):
    """The feature for folders: `if not exists: make` takes the same branch on all ranks."""

    name: ClassVar[str] = "folders"
    without: ClassVar[str] = "every rank makes, moves and removes files, and reads its own disk"
    libraries: ClassVar[bool] = True

    @patch(
        *("os:mkdir", "os:makedirs", "os:remove", "os:unlink", "os:rmdir", "os:removedirs"),
        *("os:rename", "os:renames", "os:replace", "os:symlink", "os:link", "os:truncate"),
        *("os:chmod", "os:utime", "os:chown", "os:lchown", "os:mkfifo", "os:mknod"),
        *("os:setxattr", "pathlib:Path.touch", "shutil:rmtree"),
        *("shutil:copyfile", "shutil:copy", "shutil:copy2", "shutil:copytree", "shutil:move"),
        *("shutil:make_archive", "shutil:unpack_archive"),
        why="rank 0 makes, moves and removes files and folders for all ranks",
    )
    def change_once(self, call: Call) -> Any:
        """Make the change on rank 0; all ranks wait for it, raise its error and update overlays."""
        if self.effects.mode() is Mode.PASS_THROUGH:
            return call.plain()
        if any(call.named.get(name) is not None for name in OPEN_FOLDERS):
            return call.plain()
        source, target = _path_in(call, *FROM), _path_in(call, *TO)
        changed = source if target is None else target
        mode = self.effects.mode(changed, by=whose)
        if mode is Mode.SYNCED and changed is not None:
            return self._change_together(call, source, changed)
        if mode is Mode.UNSYNCED and changed is not None:
            return self._change_alone(call, source, target)
        with self.effects.context.internal():  # a cache folder, with its parents
            return call.plain()

    @patch(
        *("os:stat", "os:lstat", "os:access", "os:readlink", "os:listdir", "os:scandir"),
        *("os:statvfs", "os:pathconf", "os:listxattr", "os:getxattr"),  # as `shutil.copy2` does
        "posixpath:realpath",  # one question, not one for each folder above the path
        # Python 3.13 keeps these by names of its own
        *("glob:_StringGlobber.lstat", "glob:_StringGlobber.scandir"),
        optional=True,
        why="rank 0 answers which files are there, in which order, and what they are",
    )
    def ask_once(self, call: Call) -> Any:
        """Return rank 0's answer; `exists`, `getsize`, `glob`, `walk` and pathlib call these."""
        name = call.wrapped.__name__
        if call.wrapped.__module__ == "glob":
            return call.plain()  # Python 3.14: a function that calls os.scandir
        if not self._asks_rank0(call):
            if name == "realpath":
                return self._resolve(call)
            return self._look(call) if self.effects.reads() else call.plain()
        if name == "scandir":
            folder = os.fspath(call.named.get("path") or ".")
            known = self.effects.ask_rank0(call.name, lambda: [*map(facts, call.plain())])
            return Listing(Entry(folder, one) for one in known)
        return self.effects.ask_rank0(call.name, call.plain)

    def _asks_rank0(self, call: Call) -> bool:
        """Return whether rank 0 answers: for a path as text, not relative to an open folder."""
        # `named` would take longer than all else; the path is the first argument
        path = call.args[0] if call.args else call.kwargs.get("path", ".")
        textual = isinstance(path, (str, os.PathLike, type(None)))
        by_handle = call.kwargs.get("dir_fd") is not None
        return textual and not by_handle and self.effects.mode(path, by=whose) is Mode.SYNCED

    def _change_together(self, call: Call, source: Any, changed: Any) -> Any:
        effects = self.effects
        writers, renames = effects.writers(changed), call.name.rpartition(".")[2] in RENAMES
        answer = effects.do_on_rank0(call.name, call.plain, writers=writers)
        if self.rank not in writers.ranks:
            with effects.context.internal():
                for path in (source, answer or changed) if renames else (changed,):
                    effects.overlay.drop(path, follow=False)
        return answer

    def _change_alone(self, call: Call, source: Any, target: Any) -> Any:
        """Make a change without waiting: rank 0's is real, other ranks change their overlay."""
        change = PRIVATE.get(call.name.rpartition(".")[2])
        if change is None and isinstance(call.wrapped, FunctionType):
            return call.plain()  # Python code, which calls the others
        real = source if target is None else target
        if self.rank in self.effects.writers(real, agreed=False).ranks:
            with self.context.internal():
                return call.plain()
        names = [path for path in (source, target) if path is not None]
        return named(lambda: change(self.effects.overlay, *names), *names) if change else None

    def _resolve(self, call: Call) -> Any:
        """Return the path without links; the folders above one that is this rank's own are, too."""
        if not self.effects.is_own(call.named.get("filename")):
            return call.plain()
        with self.context.internal():
            return call.plain()

    def _look(self, call: Call) -> Any:
        """Return the result of `os.stat` and the like for the files that this rank sees."""
        path = call.named.get("path")
        if call.name.endswith(("listdir", "scandir")):
            entries = None if isinstance(path, int) else self.effects.overlay.entries(path or ".")
            if entries is None:
                return call.plain()
            if call.name.endswith("scandir"):
                return Listing(Entry(os.fspath(path or "."), facts(one)) for one in entries)
            names = [one.name for one in entries]
            return [*map(os.fsencode, names)] if isinstance(path, bytes) else names
        if not isinstance(path, NAMES) or call.named.get("dir_fd") is not None:
            return call.plain()
        of_link = call.name.endswith(("lstat", "readlink"))
        follow = call.named.get("follow_symlinks", True) and not of_link
        at = self.effects.overlay.where(path, follow)
        return call.plain() if at is path else named(lambda: call.changed(path=at), path)


def _path_in(call: Call, *names: str) -> Any:
    """Return the path among these arguments, None without one."""
    values = (call.named.get(name) for name in names)
    return next((path for path in values if isinstance(path, NAMES)), None)
