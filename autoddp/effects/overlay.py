"""A private copy-on-write folder for each rank above 0, which it reads first: as overlayfs has it.

What such a rank writes, makes, renames or removes lies in an upper folder of its own, under the
full name that it has on the disk. A name that it has removed, or under which it has made a folder
of its own, is marked: what the disk has there, and below, is hidden. All else is the disk's. The
upper folder is on the disk, too, so the rank's threads and child processes see the same.
"""

from __future__ import annotations

import errno
import os
import posix
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from autoddp.effects import paths
from autoddp.effects.upper import Upper

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True)
class Found:
    """The place where an entry was found.

    Attributes:
        name: The full name, links followed.
        at: The place of the content, empty if it is hidden.
        own: Whether it lies in the upper folder, and may be changed.
        seen: The status of what is there, links not followed.
        plain: Whether the disk finds it by the name that was given.
    """

    name: str
    at: str
    own: bool
    seen: os.stat_result | None
    plain: bool

    @property
    def there(self) -> bool:
        """Return whether anything is there."""
        return self.seen is not None

    @property
    def folder(self) -> bool:
        """Return whether a folder is there."""
        return self.seen is not None and stat.S_ISDIR(self.seen.st_mode)


class Overlay(Upper):
    """The disk as this rank sees it, and its changes."""

    # ---- looking

    def find(self, path: Path, follow: bool = True) -> Found:
        """Find the entry `path`; a link at its end is followed if `follow`."""
        if not os.fspath(path):
            raise error(errno.ENOENT, path)
        if len(os.fsencode(path)) >= paths.LONGEST:  # as of a page that IPython takes for a name
            raise error(errno.ENAMETOOLONG, path)
        parts = os.path.join(paths.here(), os.fsdecode(path)).split("/")[::-1]
        name, links, plain = "", 0, True
        while parts:
            part = parts.pop()
            if part == "..":
                name = os.path.dirname(name).rstrip("/")
            elif part not in ("", "."):
                at, own = self._at(f"{name}/{part}")
                said = paths.link(at) if at and (follow or any(parts)) else None
                links, plain = links + (said is not None), plain and (said is None or not own)
                if links > paths.LINKS:
                    raise error(errno.ELOOP, path)
                if said is None:
                    name = f"{name}/{part}"
                else:
                    parts += said.split("/")[::-1]
                    name = "" if said.startswith("/") else name
        name = name or "/"
        at, own = self._at(name)
        seen = paths.seen(at, follow=False) if at else None
        return Found(name, at, own, seen, plain and at == name)

    def where(self, path: Path, follow: bool = True) -> Any:
        """Return what to give to the operating system for `path`.

        Raises:
            FileNotFoundError: This rank has removed it.
        """
        found = self.find(path, follow)
        if found.plain:
            return path
        if not found.at:
            raise error(errno.ENOENT, path)
        return os.fsencode(found.at) if isinstance(path, bytes) else found.at

    def names(self, path: Path) -> list[str] | None:
        """Return the names in a folder, None if the disk alone knows."""
        found = self.find(path)
        if not found.at:
            raise error(errno.ENOENT, path)
        upper, hidden = self._upper(found.name), self._hidden(found.name)
        own = [] if found.own else paths.names(upper)
        gone = [] if found.own else paths.names(hidden)
        if found.plain and not own and not gone:
            return None
        there = named(lambda: posix.listdir(found.at), path)
        gone = [name for name in gone if not paths.is_folder(f"{hidden}/{name}")]
        return [*dict.fromkeys([*(n for n in there if n not in gone), *own])]

    # ---- changing

    def to_write(self, path: Path, keep: bool, new: bool = False, checked: bool = False) -> str:
        """Return where to write what is at `path`: a file of this rank's own, a copy if `keep`.

        Args:
            path: The script's name of the file.
            keep: Whether the file begins with what is there.
            new: Whether it must not be there.
            checked: Whether rank 0 finds out if its folder is there and may be written to.

        Raises:
            OSError: The operating system would raise it for a write to `path`, too.
        """
        found = self.find(path)
        if new and self.find(path, follow=False).own:
            raise error(errno.EEXIST, path)
        if found.folder or (found.there and found.own):
            return found.at
        at = self._above(found.name) if checked else self._place(found, path)
        if keep and paths.is_file(found.at):
            paths.copy(found.at, at)
        return at

    def room(self, path: Path) -> str:
        """Return a folder of this rank's own for new files of the folder `path`.

        Raises:
            OSError: There is no such folder.
        """
        found = self.find(os.path.join(self.find(path).name, "_"), follow=False)
        return os.path.dirname(self._place(found, path))

    def make(self, path: Path, mode: int) -> None:
        """Make the folder `path`: nothing that rank 0 comes to write there is seen in it."""
        found, at = self._new(path)
        if found.there and not found.folder:
            raise error(errno.EEXIST, path)
        if not found.there:
            self._hide(found.name)
            posix.mkdir(at, mode)

    def link_to(self, said: Path, path: Path) -> None:
        """Make `path` a symbolic link that says `said`."""
        posix.symlink(said, self._new(path)[1])

    def special(self, path: Path, make: Callable[[str], Any]) -> None:
        """Make `path` a pipe or a device, by calling `make` with a place for it."""
        make(self._new(path)[1])

    def link(self, source: Path, target: Path) -> None:
        """Give the file `source` the other name `target`."""
        found = self._there(source)
        if found is None:
            return
        at = self._new(target)[1]
        if found.own:
            posix.link(found.at, at)
        else:
            paths.copy(found.at, at)

    def remove(self, path: Path, tree: bool = False) -> None:
        """Remove a file; with `tree`, a folder with all that is in it."""
        found = self._there(path)
        if found is None:
            return
        if found.folder != tree:
            raise error(errno.ENOTDIR if tree else errno.EISDIR, path)
        self._clear(found.name)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder, which must be empty."""
        found = self._there(path)
        if found is None:
            return
        if not found.folder:
            raise error(errno.ENOTDIR, path)
        if self._listing(found):
            raise error(errno.ENOTEMPTY, path)
        self._clear(found.name)

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source`, with all below it, to `target`."""
        found, other = self._there(source), self.find(target, follow=False)
        if found is None:
            if paths.is_file(other.name):
                paths.copy(other.name, self._above(other.name))
            return
        if found.name == other.name:
            return
        if f"{other.name}/".startswith(found.name + "/"):
            raise error(errno.EINVAL, source)
        if other.there and found.folder != other.folder:
            raise error(errno.ENOTDIR if found.folder else errno.EISDIR, target)
        if other.there and found.folder:
            self.remove_folder(target)
        at = self._place(self.find(target, follow=False), target)
        if found.own:
            paths.remove(at)
            posix.rename(found.at, at)
        else:
            self._bring(found.name, at)
            if found.name in self.private:
                paths.remove(found.name)
        if other.there and found.folder:
            self._hide(other.name)
        self._clear(found.name)

    def _new(self, path: Path) -> tuple[Found, str]:
        found = self.find(path, follow=False)
        if found.there and found.own:  # else rank 0 may be its maker
            raise error(errno.EEXIST, path)
        return found, self._place(found, path, new=True)

    def _place(self, found: Found, path: Path, new: bool = False) -> str:
        """Return where to put something; its folder must be there, and rank 0 may write to it."""
        folder = self.find(os.path.dirname(found.name))
        if not folder.there:
            raise error(errno.ENOENT, path)
        if not folder.folder:
            raise error(errno.ENOTDIR, path)
        ask = folder.at if new or found.folder or not found.there else found.at
        if not posix.access(ask, os.W_OK) and paths.seen(ask) is not None:  # not gone meanwhile
            raise error(errno.EACCES, path)
        return self._above(found.name)

    def _there(self, path: Path) -> Found | None:
        """Find what is to be removed or renamed; None where rank 0 may have done so already."""
        found = self.find(path, follow=False)
        if not found.there and (not found.at or not self.find(os.path.dirname(found.name)).there):
            raise error(errno.ENOENT, path)
        if not found.there:
            self._hide(found.name)
        return found if found.there else None

    def _listing(self, folder: Found) -> list[str]:
        """Return the names in a folder, wherever they come from."""
        names = self.names(folder.name)
        return posix.listdir(folder.at) if names is None else names

    def _bring(self, name: str, at: str) -> None:
        """Copy the entry `name`, as this rank sees it, with all below it, to `at`."""
        found = self.find(name, follow=False)
        if found.folder:
            with suppress(FileExistsError):
                posix.mkdir(at, stat.S_IMODE(found.seen.st_mode) if found.seen else 0o777)
            for part in self._listing(found):
                self._bring(f"{name}/{part}", f"{at}/{part}")
        elif (said := paths.link(found.at)) is not None:
            posix.symlink(said, at)
        else:
            paths.copy(found.at, at)

    def _clear(self, name: str) -> None:
        """Make the entry disappear for this rank."""
        paths.remove(self._upper(name))
        if not self._hides(name) and paths.seen(name, follow=False) is not None:
            self._hide(name)


def error(number: int, path: Any) -> OSError:
    """Return the error that the operating system would raise for `path`."""
    return OSError(number, os.strerror(number), os.fspath(path))


def named(act: Callable[[], Any], path: Any, other: Any = None) -> Any:
    """Do `act`; what it raises names the user's paths."""
    try:
        return act()
    except OSError as error:
        error.filename = os.fspath(path)
        if other is not None:
            error.filename2 = os.fspath(other)
        raise
