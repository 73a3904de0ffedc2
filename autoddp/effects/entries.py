"""Replacements for the entries of `os.scandir`, if another rank or another folder was listed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

# What is known of an entry: its name, inode, whether it is a link, and the answers to `QUESTIONS`.
Facts = tuple[str, int, bool, tuple[bool | OSError, ...]]
QUESTIONS = [(name, follow) for name in ("is_dir", "is_file") for follow in (True, False)]


def facts(entry: os.DirEntry[str]) -> Facts:
    """Return what is known of an entry, as plain data: there may be thousands to send."""
    answers = (_answer(getattr(entry, name), follow) for name, follow in QUESTIONS)
    return entry.name, entry.inode(), entry.is_symlink(), tuple(answers)


def _answer(ask: Callable[..., bool], follow: bool) -> bool | OSError:
    """Return the answer of an entry, or the error that it raises, as for a link to itself."""
    try:
        return ask(follow_symlinks=follow)
    except OSError as error:
        return error.with_traceback(None)


class Entry:
    """A copy of an entry of `os.scandir`.

    It holds answers that the script may never ask for: an error is raised by the question.
    """

    __slots__ = ("_answers", "_inode", "_is_link", "name", "path")

    def __init__(self, folder: Any, known: Facts) -> None:
        name, self._inode, self._is_link, self._answers = known
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path = os.path.join(folder, self.name)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the entry is a folder."""
        return self._answered("is_dir", follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the entry is a plain file."""
        return self._answered("is_file", follow_symlinks)

    def is_symlink(self) -> bool:
        """Return whether the entry is a symbolic link."""
        return self._is_link

    def is_junction(self) -> bool:
        """Return False: only Windows has junctions."""
        return False

    def inode(self) -> int:
        """Return the number of the entry's inode."""
        return self._inode

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return `os.stat` of the entry's path."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def _answered(self, question: str, follow: bool) -> bool:
        answer = self._answers[QUESTIONS.index((question, bool(follow)))]
        if isinstance(answer, OSError):
            raise OSError(answer.errno, answer.strerror, answer.filename)
        return answer

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
