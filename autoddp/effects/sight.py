"""The lookup of names on a rank above 0: its own, the disk's, or as before rank 0 went ahead."""

from __future__ import annotations

import errno
import os
import posix
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autoddp.effects import paths
from autoddp.effects.past import Past
from autoddp.effects.scratch import GONE, Scratch

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True)
class FoundPath:
    """The place where an entry was found.

    Attributes:
        name: The full name, links followed.
        at: The place of the content, empty if it is nowhere.
        base: The name on the disk, or None for what this rank made or removed, and all below it.
        seen: The status of what is there, links not followed.
        plain: Whether the links on the way are the disk's own.
    """

    name: str
    at: str
    base: str | None
    seen: os.stat_result | None = None
    plain: bool = True

    @property
    def here(self) -> bool:
        """Return whether the disk finds the entry by the name that was given."""
        return self.plain and self.at == self.name

    @property
    def there(self) -> bool:
        """Return whether anything is there."""
        return self.seen is not None

    @property
    def folder(self) -> bool:
        """Return whether a folder is there."""
        return self.seen is not None and stat.S_ISDIR(self.seen.st_mode)


class Sight:
    """The view that this rank has of the disk, which finds what a name stands for."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self.before: Past | None = None

    def idle(self) -> bool:
        """Return whether everything is where its name says."""
        self.scratch.hear()
        return not self.scratch.overlay and (self.before is None or self.before.idle())

    def own(self, found: FoundPath) -> bool:
        """Return whether an entry is this rank's own, and may be changed."""
        return found.base is None and self.scratch.holds(found.at)

    def turn(self) -> int:
        """Return a number that changes whenever rank 0 goes further ahead."""
        return 0 if self.before is None else self.before.turn()

    def find(self, path: Path, follow: bool = True) -> FoundPath:
        """Find the entry `path`; a link at its end is followed if `follow`."""

        def look() -> FoundPath:
            found = self._find(path, follow)
            return replace(found, seen=paths.seen(found.at, follow=False) if found.at else None)

        return self._still(look)

    def _still(self, look: Callable[[], Any]) -> Any:
        """Repeat `look` until rank 0 goes no further meanwhile, and return what it found."""
        if self.before is None:
            return look()
        with self.before.mine():
            while True:
                turn = self.before.refresh()
                found = look()
                if self.before.turn() == turn:
                    return found

    def _find(self, path: Path, follow: bool) -> FoundPath:
        if not os.fspath(path):
            raise error(errno.ENOENT, path)
        if len(os.fsencode(path)) >= paths.LONGEST:  # as of a page that IPython takes for a name
            raise error(errno.ENAMETOOLONG, path)
        parts = os.path.join(paths.here(), os.fsdecode(path)).split("/")[::-1]
        found, links, plain = FoundPath("", "/", ""), 0, True
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                found = self._find(os.path.dirname(found.name) or "/", True)
                plain = plain and found.plain
                continue
            below = self._below(found, part)
            said = paths.link(below.at) if (follow or any(parts)) and below.at else None
            if said is None:
                found = below
                continue
            links += 1
            plain = plain and below.at == below.name
            if links > paths.LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
            parts += said.split("/")[::-1]
            found = FoundPath("", "/", "") if said.startswith("/") else found
        return replace(found if found.name else FoundPath("/", "/", "/"), plain=plain)

    def _below(self, folder: FoundPath, part: str) -> FoundPath:
        name = f"{folder.name}/{part}"
        base = None if folder.base is None else f"{folder.base}/{part}"
        at = self.scratch.overlay.get(name)
        if at is None:
            if base is None:
                return FoundPath(name, folder.at and f"{folder.at}/{part}", None)
            return FoundPath(name, base if self.before is None else self.before.resolve(base), base)
        if at == GONE or self.scratch.holds(at) or at.startswith("/proc/"):
            return FoundPath(name, at, None)
        return FoundPath(name, at if self.before is None else self.before.resolve(at), at)

    def where(self, path: Path, follow: bool = True) -> Any:
        """Return what to give to the operating system for `path`.

        Raises:
            FileNotFoundError: Nothing is there for this rank.
        """
        found = self.find(path, follow)
        if found.here:
            return path
        if not found.at:
            raise error(errno.ENOENT, path)
        return os.fsencode(found.at) if isinstance(path, bytes) else found.at

    def names(self, path: Path) -> list[str] | None:
        """Return the names in a folder, None if the disk alone knows."""
        return self._still(lambda: self._names(path))

    def _names(self, path: Path) -> list[str] | None:
        found = self.find(path)
        if not found.at:
            raise error(errno.ENOENT, path)
        entries = list(self.scratch.overlay)  # copied at once: a thread may add to it
        own = [os.path.basename(name) for name in entries if _is_in(name, found.name)]
        changed = (
            dict(self.before.names(found.base)) if self.before and found.base is not None else {}
        )
        if found.here and not own and not changed:
            return None
        names = dict.fromkeys(named(lambda: posix.listdir(found.at), path))
        mine = ((name, self._find(f"{found.name}/{name}", False).at) for name in own)
        for name, there in [
            *changed.items(),
            *((name, bool(at and paths.seen(at, False))) for name, at in mine),
        ]:
            if there:
                names[name] = None
            else:
                names.pop(name, None)
        return list(names)


def _is_in(name: str, folder: str) -> bool:
    return os.path.dirname(name) == (folder or "/")


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
