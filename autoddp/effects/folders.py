"""Folders and names change once, by rank 0; what the script asks of the disk, rank 0 answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.effects import paths
from autoddp.effects.engine import Mode
from autoddp.effects.entries import Entry, Listing, facts
from autoddp.effects.outward import Outward
from autoddp.effects.unsynced import UnsyncedChange
from autoddp.patching import Call, patch

REMOVES = {"remove", "unlink", "rmdir", "removedirs", "rmtree"}
RENAMES = {"rename", "renames", "replace", "move"}
MAKES = {"mkdir", "makedirs"}
CHANGES = {"truncate", "touch"}
# The names of the arguments for the path that is acted on, and for the one that is made.
FROM = ("path", "src", "self", "name", "base_name", "filename")
TO = ("dst", "extract_dir")


def _same(answer: Any) -> Any:
    return answer


def _facts(listing: Any) -> list[Any]:
    with listing as entries:
        return [facts(entry) for entry in entries]


def _entries(call: Call, answer: list[Any]) -> Listing:
    folder = os.fspath(call.named.get("path") or ".")
    return Listing(Entry(folder, *each) for each in answer)


# What answers become for other ranks, and how they are made again, if they are not plain values.
_STATUS = (
    lambda found: found.__reduce__()[1],
    lambda answer: os.stat_result(tuple(answer[0]), answer[1]),
)
TRAVEL: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "stat": _STATUS,
    "lstat": _STATUS,
    "statvfs": (list, os.statvfs_result),
    "scandir": (_facts, _same),
}


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
        "os:mkdir",
        "os:makedirs",
        "os:remove",
        "os:unlink",
        "os:rmdir",
        "os:removedirs",
        "os:rename",
        "os:renames",
        "os:replace",
        "os:symlink",
        "os:link",
        "os:chmod",
        "os:truncate",
        "os:utime",
        "os:chown",
        "os:lchown",
        "os:mkfifo",
        "os:mknod",
        "os:setxattr",
        "os:removexattr",
        "pathlib:Path.touch",
        "shutil:rmtree",
        "shutil:copyfile",
        "shutil:copy",
        "shutil:copy2",
        "shutil:copytree",
        "shutil:move",
        "shutil:make_archive",
        "shutil:unpack_archive",
        why="what the script makes, moves and removes, it does once: rank 0 does it",
    )
    def change_once(self, call: Call) -> Any:
        """Make the change on rank 0; all wait for it and raise its error, and overlays follow."""
        if self.effects.mode() is Mode.PASS_THROUGH:
            return call.plain()
        given = call.named
        source, target = _first(FROM, given), _first(TO, given)
        if source is None:
            return call.plain()
        mode = self.effects.touch(
            paths.whole(source if target is None else target, _folder(given, target))
        )
        if mode is Mode.UNSYNCED:
            return self.alone.change(call)
        if mode is Mode.PASS_THROUGH and call.name.endswith("makedirs"):
            with self.effects.context.internal():  # a cache's folder, and those that it lies in
                return call.plain()
        if mode is Mode.PASS_THROUGH:
            return call.plain()
        return self._agreed(call, source, target)

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
        pack, unpack = TRAVEL.get(name, (_same, _same))
        answer = self.effects.ask_rank0(call.name, lambda: pack(call.plain()))
        return _entries(call, answer) if name == "scandir" else unpack(answer)

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

    def _agreed(self, call: Call, source: Any, target: Any) -> Any:
        effects = self.effects
        changed = paths.whole(source if target is None else target, _folder(call.named, target))
        writers = effects.writers(changed)
        if self.rank in writers.ranks:
            return effects.do_on_rank0(call.name, call.plain, _as_text, writers)
        before = None
        if not effects.overlay.idle():
            with effects.context.internal():
                # by names as they are before the change
                before = paths.real(paths.whole(source, _folder(call.named, None)), False)
        answer = effects.do_on_rank0(call.name, call.plain, None, writers)
        if before is not None:
            made = answer or paths.whole(target, _folder(call.named, target))
            self._follow(call, before, made)
        return target if target is not None and answer == os.fspath(target) else answer

    def _follow(self, call: Call, was: str, target: Any) -> None:
        """Change the overlay as rank 0 has changed the disk."""
        overlay, kind = self.effects.overlay, call.name.rpartition(".")[2]
        with self.effects.context.internal():
            becomes = None if target is None else paths.real(target, False)
            if kind in RENAMES and becomes is not None:
                overlay.move(was, becomes)
            elif kind in REMOVES or kind in CHANGES or kind in MAKES:
                overlay.drop(was)
            elif becomes is not None:
                overlay.drop(becomes)


def _first(names: tuple[str, ...], values: dict[str, Any]) -> Any:
    """Return the first of the arguments `names` that is a path, None if none is."""
    for name in names:
        if name in values and isinstance(values[name], (str, bytes, os.PathLike)):
            return values[name]
    return None


def _folder(given: dict[str, Any], target: Any) -> int | None:
    """Return the open folder that the path to change is relative to, None if none is given."""
    names = ("dir_fd", "src_dir_fd") if target is None else ("dst_dir_fd", "dir_fd")
    return next((given[name] for name in names if given.get(name) is not None), None)


def _as_text(result: Any) -> Any:
    return os.fspath(result) if isinstance(result, os.PathLike) else result
