"""Changes of names where ranks do not meet: rank 0's are real, the others' in their overlay."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FunctionType
from typing import Any

from autoddp.effects import paths
from autoddp.effects.engine import Effects
from autoddp.effects.entries import Entry, Listing
from autoddp.effects.overlay import named
from autoddp.patching import Call

SOURCE, TARGET = ("dir_fd", "src_dir_fd"), ("dst_dir_fd", "dir_fd")


class UnsyncedChange:
    """The calls of `os` and `shutil` that change or ask for names where ranks do not meet."""

    def __init__(self, effects: Effects) -> None:
        self._effects, self._overlay = effects, effects.overlay
        overlay = effects.overlay
        self._changes: dict[str, Callable[[Call, Any, Any], Any]] = {
            "mkdir": lambda call, path, _: overlay.make(path, call.named.get("mode", 0o777)),
            "remove": lambda call, path, _: overlay.remove(path),
            "unlink": lambda call, path, _: overlay.remove(path),
            "rmdir": lambda call, path, _: overlay.remove_folder(path),
            "rename": lambda call, path, to: overlay.rename(path, to),
            "replace": lambda call, path, to: overlay.rename(path, to),
            "symlink": lambda call, _, to: overlay.link_to(call.named["src"], to),
            "link": lambda call, path, to: overlay.link(path, to),
            "rmtree": self._remove_tree,
        }

    def change(self, call: Call) -> Any:
        """Make a call that changes something, without the other ranks."""
        name = call.name.rpartition(".")[2]
        if name not in self._changes and isinstance(call.wrapped, FunctionType):
            return call.plain()  # Python makes it of the others
        source, target = given(call, "path", "src"), given(call, "dst")
        path, to = at(call, source, SOURCE), at(call, target, TARGET)
        real = path if to is None else to
        if self._effects.rank in self._effects.writers(real, agreed=False).ranks:
            with self._effects.context.internal():
                return call.plain()
        change = self._changes.get(name, self._mark)
        return named(lambda: change(call, path, to), source, target)

    def ask(self, call: Call) -> Any:
        """Return what `os.stat` and the like say of what this rank finds there."""
        if call.name.endswith(("listdir", "scandir")):
            return self._list(call)
        path = given(call, "path")
        if path is None:
            return call.plain()
        itself = call.name.endswith(("lstat", "readlink"))
        follow = call.named.get("follow_symlinks", True) and not itself
        whole = at(call, path, SOURCE)
        try:
            found = self._overlay.where(whole, follow)
        except FileNotFoundError:
            if call.name.endswith("access"):
                return False
            raise
        return call.plain() if found is whole else named(lambda: _elsewhere(call, found), path)

    def enter(self, call: Call) -> Any:
        """Call `os.chdir`, to this rank's own folder if rank 0 has none of that name."""
        path = given(call, "path")
        if path is None:
            return call.plain()
        return named(lambda: call.changed(path=self._overlay.where(path)), path)

    def _list(self, call: Call) -> Any:
        """Return what `os.listdir` and `os.scandir` find on this rank."""
        path = call.named.get("path")
        found = None if isinstance(path, int) else self._overlay.entries(path or ".")
        if found is None:
            return call.plain()
        if call.name.endswith("scandir"):
            return Listing(Entry(os.fspath(path or "."), one) for one in found)
        return [os.fsencode(one.name) if isinstance(path, bytes) else one.name for one in found]

    def _remove_tree(self, call: Call, path: Any, _: Any) -> None:
        try:
            self._overlay.remove(path, tree=True)
        except OSError as error:
            report = call.named.get("onexc") or call.named.get("onerror")
            if report is not None:
                report(os.lstat, path, (type(error), error, error.__traceback__))
            elif not call.named.get("ignore_errors"):
                raise

    def _mark(self, call: Call, path: Any, _: Any) -> Any:
        """Change the mode, time, owner or length of a file of this rank's own."""
        longer = call.name.endswith("truncate")
        place = self._overlay.to_write(path, keep=True) if longer else self._overlay.where(path)
        return call.changed(path=place) if self._overlay.holds(str(place)) else None


def given(call: Call, *names: str) -> Any:
    """Return the path among these arguments, None without one."""
    found = (call.named.get(name) for name in names)
    return next((path for path in found if isinstance(path, (str, bytes, os.PathLike))), None)


def at(call: Call, path: Any, folders: tuple[str, ...]) -> Any:
    """Return `path`, joined to the open folder that an argument gives, if one does."""
    open_folder = next((call.named[n] for n in folders if call.named.get(n) is not None), None)
    return paths.whole(path, open_folder)


def _elsewhere(call: Call, place: Any) -> Any:
    """Make the call with another path, which is a full one."""
    more = {name: value for name, value in call.kwargs.items() if name not in ("path", "dir_fd")}
    return call.wrapped(place, *call.args[1:], **more)
