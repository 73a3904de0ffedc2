"""A private copy-on-write folder for each rank above 0, which it reads first, like overlayfs.

It holds changes that a rank makes without the others; those that all ranks make are on rank 0's
disk. Rank 0 makes the same change earlier or later: a file that it has made or removed already is
no error here, and one that this rank removes stays visible until rank 0 has removed it.

Private files are in the folder `upper`, under the full names that they have for the script. As
`upper` is on the disk, the rank's threads and child processes see the same files.
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
class Location:
    """The location of a file or folder.

    Attributes:
        name: The full name, links followed.
        at: The path of the content, which may be a private one.
        own: Whether it is in the private folder, and may be changed.
        seen: The status of the entry, links not followed; None if it does not exist.
        plain: Whether the operating system finds it under the name that was given.
    """

    name: str
    at: str
    own: bool
    seen: os.stat_result | None
    plain: bool

    @property
    def folder(self) -> bool:
        """Return whether it is a folder."""
        return self.seen is not None and stat.S_ISDIR(self.seen.st_mode)


class Overlay:
    """The disk as this rank sees it; methods that change it are named like those of `os`."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._shared = False  # whether another process removes the folder
        self._count = 0
        self._empty = True
        self.private: set[str] = set()  # temporary paths that libraries made for this rank

    # ---- the private folder

    def root(self) -> str:
        """Return the private folder, which may not exist yet; forks use the same one."""
        if self._folder is None:
            name = f"autoddp-{int.from_bytes(posix.urandom(6)):012x}"
            self._folder = os.path.join(HERE.private or temporary_folder(), name)
        return self._folder

    def share(self, folder: str) -> None:
        """Use the private folder of the rank that started this process."""
        self._folder, self._shared = folder, True

    def new(self, path: Path) -> str:
        """Return a new private path with the same last part, as names decide formats."""
        self._count += 1
        folder = os.path.join(self.root(), f"{posix.getpid()}-{self._count}")
        paths.make_folders(folder)
        return os.path.join(folder, os.path.basename(os.fsdecode(path)) or "_")

    def holds(self, at: str) -> bool:
        """Return whether `at` is in the private folder."""
        return self._folder is not None and at.startswith(self._folder + "/")

    def idle(self) -> bool:
        """Return whether nothing was ever written to the overlay."""
        if self._empty and self._folder is not None:
            self._empty = not paths.is_folder(f"{self._folder}/upper")
        return self._empty

    def end(self) -> None:
        """Delete the private folder."""
        if self._folder is not None and not self._shared:
            paths.remove(self._folder)
        self._folder, self._empty = None, True

    # ---- looking

    def find(self, path: Path, follow: bool = True) -> Location:
        """Find the entry `path`; follow a link at its end if `follow`."""
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
        return Location(name, at, own, paths.seen(at, follow=False), plain and at == name)

    def where(self, path: Path, follow: bool = True) -> Any:
        """Return the path that the operating system should use for `path`."""
        location = self.find(path, follow)
        if location.plain:
            return path
        return os.fsencode(location.at) if isinstance(path, bytes) else location.at

    def entries(self, path: Path) -> list[os.DirEntry[str]] | None:
        """Return the entries of a folder; None if none of them is private."""
        location = self.find(path)
        private = [] if location.own else paths.entries(self._upper(location.name))
        if location.plain and not private:
            return None
        real = named(lambda: list(posix.scandir(location.at)), path)
        return [*{one.name: one for one in [*real, *private]}.values()]

    # ---- changing

    def copy(self, path: Path) -> None:
        """Make a private copy of a file, if there is one."""
        if paths.is_file(self.find(path).at):
            self.to_write(path, keep=True)

    def to_write(self, path: Path, keep: bool, checked: bool = False) -> str:
        """Return the private path to write to for `path`.

        Args:
            path: The script's name of the file.
            keep: Whether to copy the current content.
            checked: Whether rank 0 checks that the folder exists.
        """
        location = self.find(path)
        if location.folder or (location.seen and location.own):
            return location.at
        at = self._above(location.name, None if checked else path)
        if keep and paths.is_file(location.at):
            paths.copy(location.at, at)
        return at

    def mkdir(self, path: Path) -> None:
        """Make a private folder."""
        location = self.find(path, follow=False)
        if location.own or not location.seen:
            posix.mkdir(self._above(location.name, path), 0o777)
        elif location.folder:  # rank 0 may have made it, and take it away before this rank does
            paths.make_folders(self._upper(location.name))

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with its content, if it is private."""
        paths.remove(self._upper(self.find(path, follow=False).name))

    def rmdir(self, path: Path) -> None:
        """Remove a private folder, which must be empty."""
        at = self._upper(self.find(path, follow=False).name)
        if paths.is_folder(at):
            posix.rmdir(at)

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source`, with its content, to `target`."""
        old, new = (self.find(path, follow=False) for path in (source, target))
        if old.name == new.name or not old.seen:  # rank 0 has renamed it already
            return
        at, private = self._above(new.name, target), self._upper(old.name)
        if paths.seen(private, follow=False):
            posix.rename(private, at)
        elif paths.is_file(old.at):  # a folder appears once rank 0 has renamed it
            with suppress(FileNotFoundError):  # rank 0 renames it at the same time
                paths.copy(old.at, at)
        if old.name in self.private:
            paths.remove(old.name)

    # ---- after changes that rank 0 has made for all

    def drop(self, path: Path, follow: bool = True) -> None:
        """Delete the private version of a path, as rank 0 has changed the real one."""
        if not self.idle():
            with suppress(OSError):  # too many links lead nowhere, so that nothing is there
                paths.remove(self._upper(self.find(path, follow).name))

    def refresh(self) -> None:
        """Delete private files that exist on the disk now, too, except those that are open here."""
        if self.idle():
            return
        still_open = paths.still_open()
        for name in paths.below(self._upper("")):
            if (at := self._upper(name)) not in still_open and paths.seen(name, follow=False):
                paths.remove(at)

    # ---- by full names

    def _at(self, name: str) -> tuple[str, bool]:
        """Return the path of the entry of this full name, and whether it is private."""
        if self.idle():
            return name, False
        status = paths.seen(upper := self._upper(name), follow=False)
        if status is None or (stat.S_ISDIR(status.st_mode) and paths.is_folder(name)):
            return name, False  # a folder on both sides; the upper one only holds private files
        return upper, True

    def _upper(self, name: str) -> str:
        return f"{self.root()}/upper{name}".rstrip("/")

    def _above(self, name: str, path: Path | None = None) -> str:
        """Return the private path of `name`, after making the folders above it.

        Raises:
            OSError: The folder of `path` does not exist for this rank.
        """
        if path is not None and not (folder := self.find(os.path.dirname(name))).folder:
            raise error(errno.ENOTDIR if folder.seen else errno.ENOENT, path)
        at = self._upper(name)
        paths.make_folders(os.path.dirname(at))
        return at


def error(number: int, path: Any) -> OSError:
    """Return the error that the operating system would raise for `path`."""
    return OSError(number, os.strerror(number), os.fspath(path))


def named(act: Callable[[], Any], path: Any, other: Any = None) -> Any:
    """Call `act`; an error that it raises names the user's paths."""
    try:
        return act()
    except OSError as error:
        error.filename = os.fspath(path)
        if other is not None:
            error.filename2 = os.fspath(other)
        raise
