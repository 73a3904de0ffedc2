"""Stand-ins for what `os.scandir` yields, where another rank or another folder was asked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any


class Entry:
    """An entry like those of `os.scandir`, made of what `facts` returned of one."""

    def __init__(self, folder: Any, name: str, kinds: list[bool], inode: int) -> None:
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path = os.path.join(folder, self.name)
        self._kinds, self._inode = kinds, inode

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the entry is a folder."""
        return self._kinds[0 if follow_symlinks else 2]

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the entry is a plain file."""
        return self._kinds[1 if follow_symlinks else 3]

    def is_symlink(self) -> bool:
        """Return whether the entry is a symbolic link."""
        return self._kinds[4]

    def is_junction(self) -> bool:
        """Return False: only Windows has junctions."""
        return False

    def inode(self) -> int:
        """Return the number of the entry's inode."""
        return self._inode

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return what `os.stat` says of the entry's path."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class Listing(AbstractContextManager["Listing"], Iterator[Entry]):
    """An iterator over entries that can be closed, like the one of `os.scandir`."""

    def __init__(self, folder: Any, found: Iterable[list[Any]]) -> None:
        self._entries = iter([Entry(folder, *each) for each in found])

    def __next__(self) -> Entry:
        return next(self._entries)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the entries that are left to iterate over."""
        self._entries = iter(())


def facts(entries: Iterable[os.DirEntry[str]]) -> list[list[Any]]:
    """Return the names, kinds and inodes of entries, as JSON can carry them."""
    found: list[list[Any]] = []
    for entry in entries:
        follows = [entry.is_dir(), entry.is_file()]
        itself = [entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)]
        found.append([entry.name, [*follows, *itself, entry.is_symlink()], entry.inode()])
    return found
