"""A private copy-on-write folder for each rank above 0, which it reads first: as overlayfs has it.

Only what a rank does without the others is changed here; where all do it, rank 0's disk has it.
Rank 0 may do the same earlier or later: what it has made or removed already is no failure here, and
what this rank removes is there until rank 0 has removed it.

A file lies in `upper` under the full name that it has for the script. The folder is on the disk, so
the rank's threads and child processes see the same.
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

from autoddp.comm.place import HERE
from autoddp.effects import paths
from autoddp.report.temporary import temporary_folder

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True)
class Found:
    """The place where an entry was found.

    Attributes:
        name: The full name, links followed.
        at: The place of the content.
        own: Whether it lies in the private folder, and may be changed.
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


class Overlay:
    """The disk as this rank sees it, and its changes, which have the names of functions of `os`."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._shared = False  # whether another process removes it
        self._count = 0
        self._empty = True
        self.private: set[str] = set()  # temporary paths that libraries made for this rank alone

    # ---- the private folder

    def place(self) -> str:
        """Return the private folder, which need not be there yet; forks have the same."""
        if self._folder is None:
            name = f"autoddp-{int.from_bytes(posix.urandom(6)):012x}"
            self._folder = os.path.join(HERE.private or temporary_folder(), name)
        return self._folder

    def share(self, folder: str) -> None:
        """Use the private folder of the rank that has started this process."""
        self._folder, self._shared = folder, True

    def new(self, path: Path) -> str:
        """Return a path that nobody finds, with the same last part (names decide formats)."""
        self._count += 1
        folder = os.path.join(self.place(), f"{posix.getpid()}-{self._count}")
        paths.make_folders(folder)
        return os.path.join(folder, os.path.basename(os.fsdecode(path)) or "_")

    def holds(self, at: str) -> bool:
        """Return whether `at` is in the private folder."""
        return self._folder is not None and at.startswith(self._folder + "/")

    def idle(self) -> bool:
        """Return whether nothing was ever written: everything is where its name says."""
        if self._empty and self._folder is not None:
            self._empty = not paths.is_folder(f"{self._folder}/upper")
        return self._empty

    def end(self) -> None:
        """Forget everything, and delete the private folder."""
        if self._folder is not None and not self._shared:
            paths.remove(self._folder)
        self._folder, self._empty = None, True

    # ---- looking

    def find(self, path: Path, follow: bool = True) -> Found:
        """Find the entry `path`; a link at its end is followed if `follow`."""
        if not os.fspath(path):
            raise error(errno.ENOENT, path)
        parts = os.path.join(paths.here(), os.fsdecode(path)).split("/")[::-1]
        name, links, plain = "", 0, True
        while parts:
            part = parts.pop()
            if part == "..":
                name = os.path.dirname(name).rstrip("/")
            elif part not in ("", "."):
                at, own = self._at(f"{name}/{part}")
                link = paths.link(at) if follow or any(parts) else None
                links, plain = links + (link is not None), plain and (link is None or not own)
                if links > paths.LINKS:
                    raise error(errno.ELOOP, path)
                if link is None:
                    name = f"{name}/{part}"
                else:
                    parts += link.split("/")[::-1]
                    name = "" if link.startswith("/") else name
        at, own = self._at(name := name or "/")
        return Found(name, at, own, paths.seen(at, follow=False), plain and at == name)

    def where(self, path: Path, follow: bool = True) -> Any:
        """Return what to give to the operating system for `path`."""
        found = self.find(path, follow)
        if found.plain:
            return path
        return os.fsencode(found.at) if isinstance(path, bytes) else found.at

    def entries(self, path: Path) -> list[os.DirEntry[str]] | None:
        """Return what is in a folder, None if the disk alone knows."""
        found = self.find(path)
        own = [] if found.own else paths.entries(self._upper(found.name))
        if found.plain and not own:
            return None
        there = named(lambda: list(posix.scandir(found.at)), path)
        return [*{one.name: one for one in [*there, *own]}.values()]

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

    def mkdir(self, path: Path) -> None:
        """Make a folder of this rank's own."""
        found = self.find(path, follow=False)
        if found.own or not found.seen:  # else rank 0 may be its maker
            posix.mkdir(self._above(found.name, path), 0o777)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with all below it, as far as it is this rank's own."""
        paths.remove(self._upper(self.find(path, follow=False).name))

    def rmdir(self, path: Path) -> None:
        """Remove a folder of this rank's own, which must be empty."""
        at = self._upper(self.find(path, follow=False).name)
        if paths.is_folder(at):
            posix.rmdir(at)

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source`, with all below it, to `target`."""
        found, other = (self.find(path, follow=False) for path in (source, target))
        if found.name == other.name or not found.seen:  # rank 0 has renamed it already
            return
        at, own = self._above(other.name, target), self._upper(found.name)
        if paths.seen(own, follow=False):
            posix.rename(own, at)
        elif paths.is_file(found.at):  # a folder is there once rank 0 has renamed it
            with suppress(FileNotFoundError):  # rank 0 renames it at this moment
                paths.copy(found.at, at)
        if found.name in self.private:
            paths.remove(found.name)

    # ---- what rank 0 has done for all

    def drop(self, path: Path, follow: bool = True) -> None:
        """Delete what this rank has there: rank 0 has changed it, the disk has the truth."""
        if not self.idle():
            paths.remove(self._upper(self.find(path, follow).name))

    def refresh(self) -> None:
        """Delete the files that rank 0 has made as well, except those that are open here."""
        if self.idle():
            return
        held = paths.still_open()
        for name in paths.below(self._upper("")):
            if (at := self._upper(name)) not in held and paths.seen(name, follow=False):
                paths.remove(at)

    # ---- by full names

    def _at(self, name: str) -> tuple[str, bool]:
        """Return where the entry of this full name lies, and whether in the private folder."""
        if self.idle():
            return name, False
        there = paths.seen(upper := self._upper(name), follow=False)
        if there is None or (stat.S_ISDIR(there.st_mode) and paths.is_folder(name)):
            return name, False  # a folder on both sides: the upper one only holds files below it
        return upper, True

    def _upper(self, name: str) -> str:
        return f"{self.place()}/upper{name}".rstrip("/")

    def _above(self, name: str, path: Path | None = None) -> str:
        """Return the place of `name` in the private folder, the folders above it made.

        Raises:
            OSError: This rank finds no folder there, where to put `path`.
        """
        if path is not None and not (found := self.find(os.path.dirname(name))).folder:
            raise error(errno.ENOTDIR if found.seen else errno.ENOENT, path)
        at = self._upper(name)
        paths.make_folders(os.path.dirname(at))
        return at


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
