"""Changes of names where ranks do not meet: rank 0's are real, the others' in their overlay."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any

from autoddp.effects import paths
from autoddp.effects.engine import Effects
from autoddp.effects.entries import Entry, Listing
from autoddp.effects.overlay import named
from autoddp.patching import Call

# Functions that Python makes of the others: they call them.
MADE = frozenset(
    [
        "makedirs",
        "removedirs",
        "renames",
        "touch",
        "copyfile",
        "copy",
        "copy2",
        "copytree",
        "move",
        "make_archive",
        "unpack_archive",
    ]
)
SMALL = 1 << 20  # bytes of a file of rank 0's that is copied for another mode, owner or time


class UnsyncedChange:
    """The calls of `os` and `shutil` that change or ask for names where ranks do not meet."""

    def __init__(self, effects: Effects) -> None:
        self._effects, self._overlay = effects, effects.overlay
        self._changes: dict[str, Callable[[Call, Any, Any], Any]] = {
            "mkdir": lambda call, path, _: self._overlay.make(path, call.named.get("mode", 0o777)),
            "remove": lambda call, path, _: self._overlay.remove(path),
            "unlink": lambda call, path, _: self._overlay.remove(path),
            "rmdir": lambda call, path, _: self._overlay.remove_folder(path),
            "rename": lambda call, path, to: self._overlay.rename(path, to),
            "replace": lambda call, path, to: self._overlay.rename(path, to),
            "symlink": lambda call, path, to: self._overlay.link_to(call.named["src"], to),
            "link": lambda call, path, to: self._overlay.link(path, to),
            "mkfifo": self._special,
            "mknod": self._special,
            "rmtree": self._remove_tree,
        }

    def change(self, call: Call) -> Any:
        """Make a call that changes something, without the other ranks."""
        name = call.name.rpartition(".")[2]
        if name in MADE:
            return call.plain()
        path = paths.whole(_given(call, "path", "src"), _folder(call, "dir_fd", "src_dir_fd"))
        to = _given(call, "dst")
        if to is not None:
            to = paths.whole(to, _folder(call, "dst_dir_fd", "dir_fd"))
        real = path if to is None else to
        if self._effects.rank in self._effects.writers(real, agreed=False).ranks:
            with self._effects.context.internal():
                return call.plain()
        return named(
            lambda: self._changes.get(name, self._mark)(call, path, to),
            _given(call, "path", "src"),
            _given(call, "dst"),
        )

    def ask(self, call: Call) -> Any:
        """Return what `os.stat` and the like say of what this rank finds there."""
        if call.name.endswith(("listdir", "scandir")):
            return self._list(call)
        path = _given(call, "path")
        if path is None:
            return call.plain()
        follow = call.named.get("follow_symlinks", True) and not call.name.endswith(
            ("lstat", "readlink")
        )
        whole = paths.whole(path, _folder(call, "dir_fd"))
        if call.name.endswith("access"):
            found = self._overlay.find(whole, follow) if os.fspath(path) else None
            return bool(found and found.there and _elsewhere(call, found.at))
        at = self._overlay.where(whole, follow)
        if at is whole:
            return call.plain()
        return named(lambda: _elsewhere(call, at), path)

    def enter(self, call: Call) -> Any:
        """Call `os.chdir`, to this rank's own folder if rank 0 has none of that name."""
        path = _given(call, "path")
        if path is None:
            return call.plain()
        return named(lambda: call.changed(path=self._overlay.where(path)), path)

    def _list(self, call: Call) -> Any:
        """Return what `os.listdir` and `os.scandir` find on this rank."""
        path = call.named.get("path")
        names = None if isinstance(path, int) else self._overlay.names(path or ".")
        if names is None:
            return call.plain()
        if call.name.endswith("scandir"):
            folder = os.fspath(path or ".")
            return Listing(iter([self._entry(folder, name) for name in names]))
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)

    def _entry(self, folder: Any, name: str) -> Entry:
        path = os.path.join(os.fsdecode(folder), name)
        kinds = []
        for follow in (True, False):
            at = self._overlay.find(path, follow).at
            there = paths.seen(at, follow) if at else None
            mode = 0 if there is None else there.st_mode
            kinds += [stat.S_ISDIR(mode), stat.S_ISREG(mode)]
        inode = 0 if there is None else there.st_ino
        return Entry(folder, name, [*kinds, stat.S_ISLNK(mode)], inode)

    def _special(self, call: Call, path: Any, to: Any) -> None:
        self._overlay.special(path, lambda at: call.changed(path=at, dir_fd=None))

    def _remove_tree(self, call: Call, path: Any, to: Any) -> None:
        try:
            self._overlay.remove(path, tree=True)
        except OSError as error:
            report = call.named.get("onexc") or call.named.get("onerror")
            if report is not None:
                report(os.lstat, path, (type(error), error, error.__traceback__))
            elif not call.named.get("ignore_errors"):
                raise

    def _mark(self, call: Call, path: Any, to: Any) -> Any:
        """Set a mode, owner, time or length; of a large file, rank 0 sets all but the length."""
        follow = call.named.get("follow_symlinks", True) and not call.name.endswith("lchown")
        found = self._overlay.find(path, follow)
        if not found.there:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        at = found.at
        if not found.own:
            there = paths.seen(at)
            small = there is not None and there.st_size <= SMALL and stat.S_ISREG(there.st_mode)
            if not small and not call.name.endswith("truncate"):
                return None
            at = self._overlay.to_write(path, keep=True)
        return call.changed(path=at)


def _elsewhere(call: Call, at: Any) -> Any:
    """Make the call with another path, which is a full one."""
    more = {name: value for name, value in call.kwargs.items() if name not in ("path", "dir_fd")}
    return call.wrapped(at, *call.args[1:], **more)


def _given(call: Call, *names: str) -> Any:
    """Return the path among these arguments, None without one."""
    found = (call.named.get(name) for name in names)
    return next((path for path in found if isinstance(path, (str, bytes, os.PathLike))), None)


def _folder(call: Call, *names: str) -> int | None:
    return next((call.named[name] for name in names if call.named.get(name) is not None), None)
