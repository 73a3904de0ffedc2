"""What a rank above 0 finds under a name: its own, the disk's, or what was there before rank 0 went ahead."""

from __future__ import annotations

import errno
import os
import posix
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autoddp.outside import paths
from autoddp.outside.before import Before
from autoddp.outside.scratch import GONE, Scratch

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True)
class Found:
    """Where an entry is.

    Attributes:
        name: Its full name, links followed.
        at: Where its content lies, if it is anywhere.
        base: What it is called on the disk, or None in a folder that this rank made.
        seen: What is there, its links not followed.
    """

    name: str
    at: str
    base: str | None
    seen: os.stat_result | None = None

    @property
    def there(self) -> bool:
        """Whether anything is there."""
        return self.seen is not None

    @property
    def folder(self) -> bool:
        """Whether that is a folder."""
        return self.seen is not None and stat.S_ISDIR(self.seen.st_mode)


class Sight:
    """Where this rank finds what a name stands for."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self.before: Before | None = None

    def idle(self) -> bool:
        """Whether everything is where its name says."""
        return not self.scratch.overlay and (self.before is None or self.before.idle())

    def own(self, found: Found) -> bool:
        """Whether it is this rank's own, and may be changed."""
        return found.base is None and self.scratch.holds(found.at)

    def turn(self) -> int:
        """Another number whenever rank 0 has gone further ahead."""
        return 0 if self.before is None else self.before.turn()

    def find(self, path: Path, follow: bool = True) -> Found:
        """Where `path` is; a link at its end is followed if asked."""

        def look() -> Found:
            found = self._find(path, follow)
            return replace(found, seen=paths.seen(found.at, follow=False) if found.at else None)

        return self._still(look)

    def _still(self, look: Callable[[], Any]) -> Any:
        """What `look` finds while rank 0 goes no further."""
        if self.before is None:
            return look()
        while True:
            turn = self.before.refresh()
            found = look()
            if self.before.turn() == turn:
                return found

    def _find(self, path: Path, follow: bool) -> Found:
        parts = os.path.join(paths.here(), os.fsdecode(path)).split("/")[::-1]
        found, links = Found("", "/", ""), 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                found = self._find(os.path.dirname(found.name) or "/", True)
                continue
            below = self._below(found, part)
            said = paths.link(below.at) if (follow or any(parts)) and below.at else None
            if said is None:
                found = below
                continue
            links += 1
            if links > paths.LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
            parts += said.split("/")[::-1]
            found = Found("", "/", "") if said.startswith("/") else found
        return found if found.name else Found("/", "/", "/")

    def _below(self, folder: Found, part: str) -> Found:
        name = f"{folder.name}/{part}"
        base = None if folder.base is None else f"{folder.base}/{part}"
        at = self.scratch.overlay.get(name)
        if at is None:
            if base is None:
                return Found(name, folder.at and f"{folder.at}/{part}", None)
            return Found(name, base if self.before is None else self.before.resolve(base), base)
        if at == GONE or self.scratch.holds(at) or at.startswith("/proc/"):
            return Found(name, at, None)
        return Found(name, at if self.before is None else self.before.resolve(at), at)

    def where(self, path: Path, follow: bool = True) -> Any:
        """What to give to the operating system for `path`.

        Raises:
            FileNotFoundError: It is not there for this rank.
        """
        found = self.find(path, follow)
        if found.at == found.name:
            return path
        if not found.at:
            raise error(errno.ENOENT, path)
        return os.fsencode(found.at) if isinstance(path, bytes) else found.at

    def names(self, path: Path) -> list[str] | None:
        """What is in a folder; None if the disk alone knows."""
        return self._still(lambda: self._names(path))

    def _names(self, path: Path) -> list[str] | None:
        found = self.find(path)
        if not found.at:
            raise error(errno.ENOENT, path)
        own = {os.path.basename(k): at for k, at in self.scratch.overlay.items() if _is_in(k, found.name)}
        changed = dict(self.before.names(found.base)) if self.before and found.base is not None else {}
        if found.at == found.name and not own and not changed:
            return None
        names = dict.fromkeys(posix.listdir(found.at))
        for name, there in [
            *changed.items(),
            *((name, bool(at and paths.seen(at, False))) for name, at in own.items()),
        ]:
            if there:
                names[name] = None
            else:
                names.pop(name, None)
        return list(names)


def _is_in(name: str, folder: str) -> bool:
    return os.path.dirname(name) == (folder or "/")


def error(number: int, path: Any) -> OSError:
    """As the operating system would raise it."""
    return OSError(number, os.strerror(number), path)
