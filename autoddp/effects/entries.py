"""Stand-ins for what `os.scandir` yields, where another rank or another folder was asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


class Entry:
    """An entry like those of `os.scandir`, made of facts from rank 0 or from another folder."""

    def __init__(self, folder: Any, name: str, kinds: list[bool], inode: int) -> None:
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path = os.path.join(folder, self.name)
        self._folder, self._file, self._folder_itself, self._file_itself, self._link = kinds
        self._inode = inode

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the entry is a folder."""
        return self._folder if follow_symlinks else self._folder_itself

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the entry is a plain file."""
        return self._file if follow_symlinks else self._file_itself

    def is_symlink(self) -> bool:
        """Return whether the entry is a symbolic link."""
        return self._link

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


class Listing:
    """An iterator over entries that can be closed, like the one of `os.scandir`."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries

    def __iter__(self) -> Listing:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the entries that are left to iterate over."""
        self._entries = iter(())


def facts(entry: os.DirEntry[str]) -> list[Any]:
    """Return the name, kinds and inode of an entry, as JSON can carry them."""
    kinds = [
        entry.is_dir(),
        entry.is_file(),
        entry.is_dir(follow_symlinks=False),
        entry.is_file(follow_symlinks=False),
        entry.is_symlink(),
    ]
    return [entry.name, kinds, entry.inode()]
