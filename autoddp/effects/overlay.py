"""A private copy-on-write folder for each rank above 0, which it reads first: as overlayfs has it.

Only what a rank does without the others is changed here; where all do it, rank 0's disk has it.
Rank 0 may do the same earlier or later: what it has made or removed already is no failure here.
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
from autoddp.effects.upper import Path, Upper


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
                link = paths.link(at) if at and (follow or any(parts)) else None
                links, plain = links + (link is not None), plain and (link is None or not own)
                if links > paths.LINKS:
                    raise error(errno.ELOOP, path)
                if link is None:
                    name = f"{name}/{part}"
                else:
                    parts += link.split("/")[::-1]
                    name = "" if link.startswith("/") else name
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

    def entries(self, path: Path) -> list[os.DirEntry[str]] | None:
        """Return what is in a folder, None if the disk alone knows."""
        found = self.find(path)
        if not found.at:
            raise error(errno.ENOENT, path)
        own, gone = [], set()
        if not found.own:
            own = paths.entries(self._upper(found.name))
            gone = {one.name for one in paths.entries(self._hidden(found.name)) if one.is_file()}
        if found.plain and not own and not gone:
            return None
        there = named(lambda: list(posix.scandir(found.at)), path)
        lower = {one.name: one for one in there if one.name not in gone}
        return [*(lower | {one.name: one for one in own}).values()]

    # ---- changing

    def to_write(self, path: Path, keep: bool, checked: bool = False) -> str:
        """Return where to write what is at `path`: a file of this rank's own, a copy if `keep`.

        Args:
            path: The script's name of the file.
            keep: Whether the file begins with what is there.
            checked: Whether rank 0 finds out if its folder is there.
        """
        found = self.find(path)
        if found.folder or (found.seen and found.own):
            return found.at
        at = self._above(found.name, None if checked else path)
        if keep and paths.is_file(found.at):
            paths.copy(found.at, at)
        return at

    def room(self, path: Path) -> str:
        """Return a folder of this rank's own for new files of the folder `path`."""
        return os.path.dirname(self._above(f"{self.find(path).name}/_"))

    def make(self, path: Path, mode: int) -> None:
        """Make the folder `path`: what rank 0 writes there later is hidden."""
        found = self.find(path, follow=False)
        if found.own or not found.seen:  # else rank 0 may be its maker
            posix.mkdir(self._above(found.name, path), mode)
            self._hide(found.name)

    def link_to(self, target: Path, path: Path) -> None:
        """Make `path` a symbolic link to `target`."""
        posix.symlink(target, self._above(self.find(path, follow=False).name, path))

    def link(self, source: Path, target: Path) -> None:
        """Give the file `source` the other name `target`."""
        found = self._there(source)
        at = self._above(self.find(target, follow=False).name, target)
        if found.seen:  # else rank 0 has removed it
            (posix.link if found.own else paths.copy)(found.at, at)

    def remove(self, path: Path, tree: bool = False) -> None:
        """Remove a file; with `tree`, a folder with all that is in it."""
        found = self._there(path)
        if found.seen and found.folder != tree:
            raise error(errno.ENOTDIR if tree else errno.EISDIR, path)
        self._clear(found.name)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder, which must be empty."""
        found = self._there(path)
        if found.folder and self._listing(found):
            raise error(errno.ENOTEMPTY, path)
        self._clear(found.name)

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source`, with all below it, to `target`."""
        found, other = self._there(source), self.find(target, follow=False)
        if found.name == other.name:
            return
        at, now = self._above(other.name, target), found.at
        if not found.own:
            now = self.new(source)
            try:
                self._bring(found.name, now)
            except FileNotFoundError:  # rank 0 has renamed it already: it is there on the disk
                if not self._hides(other.name) or not paths.is_file(other.name):
                    return
                paths.copy(other.name, now)
        posix.rename(now, at)
        if found.folder:
            self._hide(other.name)
        if found.name in self.private:
            paths.remove(found.name)
        self._clear(found.name)

    # ---- what rank 0 has done for all

    def drop(self, path: Path, follow: bool = True) -> None:
        """Delete what this rank has there: rank 0 has changed it, the disk has the truth."""
        if self.idle():
            return
        name = self.find(path, follow).name
        paths.remove(self._upper(name))
        paths.remove(self._hidden(name))
        for top in paths.above(name):
            if self._hides(top) and paths.is_folder(top):
                paths.remove(self._hidden(top))

    def move(self, source: str, target: Path) -> None:
        """Follow a rename by rank 0, which may have another name for it, as of its process."""
        self.drop(target, follow=False)
        if paths.seen(own := self._upper(source), follow=False) and not paths.seen(target, False):
            posix.rename(own, self._above(self.find(target, follow=False).name))
        self.drop(source, follow=False)

    def alias(self, path: Path, at: str) -> None:
        """Have this rank find at `path` what lies at `at`, if nothing has that name."""
        name = self.find(path).name
        if paths.seen(name, follow=False) is None:
            paths.remove(self._upper(name))
            posix.symlink(at, self._above(name))

    def refresh(self) -> None:
        """Delete the changes that rank 0 has made as well, except files that are open here."""
        if self.idle():
            return
        held = paths.still_open()
        for name in paths.below(self._upper("")):
            if (at := self._upper(name)) not in held and paths.seen(name, follow=False):
                paths.remove(at)
                paths.remove(self._hidden(name))
        for name in paths.below(self._hidden("")):
            made = paths.is_folder(name) and paths.is_folder(self._upper(name))  # by both
            if made or not paths.seen(name, follow=False):
                paths.remove(self._hidden(name))

    # ----

    def _above(self, name: str, path: Path | None = None) -> str:
        """Return the place of `name` in the upper folder, the folders above it made.

        Raises:
            OSError: This rank finds no folder there, where to put `path`.
        """
        if path is not None and not (found := self.find(os.path.dirname(name))).folder:
            raise error(errno.ENOTDIR if found.seen else errno.ENOENT, path)
        at = self._upper(name)
        paths.make_folders(os.path.dirname(at))
        return at

    def _there(self, path: Path) -> Found:
        """Find what is to be removed or renamed; nothing may be there, if rank 0 was quicker."""
        found = self.find(path, follow=False)
        if not found.at or not (found.seen or self.find(os.path.dirname(found.name)).seen):
            raise error(errno.ENOENT, path)
        if not found.seen:
            self._hide(found.name)
        return found

    def _listing(self, folder: Found) -> list[str]:
        """Return the names in a folder, wherever they come from."""
        entries = self.entries(folder.name)
        return posix.listdir(folder.at) if entries is None else [one.name for one in entries]

    def _bring(self, name: str, at: str) -> None:
        """Copy the entry `name`, as this rank sees it, with all below it, to `at`."""
        found = self.find(name, follow=False)
        if found.folder:
            with suppress(FileExistsError):
                posix.mkdir(at, 0o777)
            for part in self._listing(found):
                self._bring(f"{name}/{part}", f"{at}/{part}")
        elif (link := paths.link(found.at)) is not None:
            posix.symlink(link, at)
        else:
            paths.copy(found.at, at)


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
