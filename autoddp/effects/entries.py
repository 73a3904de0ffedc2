"""What `os.scandir` yields, where another rank or another folder has been asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


class Entry:
    """What `os.scandir` yields, from what rank 0 saw."""

    def __init__(self, folder: Any, name: str, kinds: list[bool], inode: int) -> None:
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path = os.path.join(folder, self.name)
        self._folder, self._file, self._folder_itself, self._file_itself, self._link = kinds
        self._inode = inode

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return self._folder if follow_symlinks else self._folder_itself

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a plain file."""
        return self._file if follow_symlinks else self._file_itself

    def is_symlink(self) -> bool:
        """Whether it is a link."""
        return self._link

    def is_junction(self) -> bool:
        """Never, but on Windows."""
        return False

    def inode(self) -> int:
        """Its inode."""
        return self._inode

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """What `os.stat` says."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class Listing:
    """What `os.scandir` returns: an iterator that can be closed."""

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
        """Nothing is left to iterate over."""
        self._entries = iter(())


def facts(entry: os.DirEntry[str]) -> list[Any]:
    """What an entry says of itself, as JSON can carry it."""
    kinds = [
        entry.is_dir(),
        entry.is_file(),
        entry.is_dir(follow_symlinks=False),
        entry.is_file(follow_symlinks=False),
        entry.is_symlink(),
    ]
    return [entry.name, kinds, entry.inode()]
