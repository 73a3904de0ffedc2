"""Replacements for the entries of `os.scandir`, if another rank or another folder was listed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any


class Entry:
    """A copy of an entry of `os.scandir`, which can be pickled."""

    def __init__(self, folder: Any, entry: os.DirEntry[str]) -> None:
        self.name: Any = os.fsencode(entry.name) if isinstance(folder, bytes) else entry.name
        self.path = os.path.join(folder, self.name)
        self._is_dir = {follow: entry.is_dir(follow_symlinks=follow) for follow in (True, False)}
        self._is_file = {follow: entry.is_file(follow_symlinks=follow) for follow in (True, False)}
        self._is_link = entry.is_symlink()

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the entry is a folder."""
        return self._is_dir[follow_symlinks]

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the entry is a plain file."""
        return self._is_file[follow_symlinks]

    def is_symlink(self) -> bool:
        """Return whether the entry is a symbolic link."""
        return self._is_link

    def is_junction(self) -> bool:
        """Return False: only Windows has junctions."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return `os.stat` of the entry's path."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def __fspath__(self) -> Any:
        return self.path


class Listing(AbstractContextManager["Listing"], Iterator[Entry]):
    """An iterator over entries that can be closed, like that of `os.scandir`."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = iter(entries)

    def __next__(self) -> Entry:
        return next(self._entries)

    def __exit__(self, *_: object) -> None:
        """Drop the remaining entries."""
        self._entries = iter(())

    close = __exit__
