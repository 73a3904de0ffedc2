"""A journal of what was there before rank 0 changed it where ranks do not meet, for ranks behind.

Rank 0 does for real what a library asks for, and waits for nobody. So it writes down first what
each name held, and after how many effects of the script that was. A rank that has come through
fewer, or as many, sees what was there before: nothing; the old file, which a descriptor of rank 0's
keeps alive; its first bytes; or the place where it lies now.

Other threads than the script's are in no order with its effects. What one of them makes on rank 0,
those of the other ranks make for themselves: it is noted as `APART`, and none of them ever finds
rank 0's.
"""

from __future__ import annotations

import json
import mmap
import os
import posix
import stat
import threading
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any

from autoddp.comm.place import HERE
from autoddp.effects import paths

GONE, GROWN, EMPTIED, FILLED = "gone", "grown", "emptied", "filled"  # what happens to an entry
ABSENT, KEPT, CUT, MOVED, TREE, LINK = "absent", "kept", "cut", "moved", "tree", "link"
# A thread of rank 0's removed or renamed the entry: a thread that does so, too, shall not miss it.
TAKEN = "taken"
SMALL = 1 << 20  # bytes of a file that is copied before it is emptied
MOST = 256  # old files that are kept alive at once
PRUNE = 64  # records after which what no rank can need any more is forgotten
APART = 1 << 62  # the number of effects after which others may see what a thread made
BUSY = -1  # as the number of the file: a new one begins
# Words of the board; from `FIRST` on there is one for each rank.
TURN, LIVE, NUMBER, LENGTH, LASTING, MOVING, MET, FIRST = range(8)


class Board:
    """A page of memory that rank 0 shares with the ranks of its node."""

    def __init__(self, folder: str, ranks: int, make: bool) -> None:
        path = os.path.join(folder, "board")
        # another rank makes none: rank 0 may have come to its end, and taken its own away
        handle = posix.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o600)
        if make:
            posix.ftruncate(handle, 8 * (FIRST + ranks))
        self._map = mmap.mmap(handle, 8 * (FIRST + ranks))
        posix.close(handle)
        self.words = memoryview(self._map).cast("q")
        self.folder = folder

    def path(self, number: int) -> str:
        """Return the path of the journal's file of this number.

        A new file begins whenever old records are forgotten; file 0 is of what never is.
        """
        return os.path.join(self.folder, f"journal-{number}")


class Journal:
    """Rank 0's part of the journal: the records of what it is about to change."""

    def __init__(self, board: Board, ranks: int, threads: Container[threading.Thread] = ()) -> None:
        self._board, self._ranks = board, ranks
        self._threads = threads  # those that every rank has, too
        self._lock = threading.RLock()  # of any thread: the garbage collector may close a file
        self._records: list[list[Any]] = []
        # by path: the number of its newest record, and its kind
        self._known: dict[str, tuple[int, str]] = {}
        self._apart: set[str] = set()  # what threads have made
        self._handles: dict[str, int] = {}
        self._copies = self._serial = self._number = 0
        self._over = False  # then a thread may still be in what it began before
        self._lasting = self._open(0)
        self._file = self._begin()

    def note(self, number: int, path: str, how: str = GONE) -> None:
        """Write down what is at `path`, which is about to be changed.

        Args:
            number: How many effects of the script came before.
            path: The full name of the entry.
            how: GONE: it is removed or replaced; GROWN: something is added at its end; EMPTIED,
                FILLED: it is changed in place, and what holds it open sees that.
        """
        with self._lock:
            if self._over or self._is_known(number, path, how):
                return
            if threading.current_thread() in self._threads:
                new = paths.seen(path, follow=False) is None
                if new or how == GONE:
                    self._add(APART, path, ABSENT if new else TAKEN, None)
                if new:
                    self._apart.add(path)
                    return
            fresh = _fresh(path) if how == EMPTIED else None
            self._add(number, path, *self._was(path, GONE if fresh else how))
            if fresh:
                posix.rename(fresh, path)  # so that the old one is left as it is

    @contextmanager
    def moving(self, number: int, source: str, target: str) -> Iterator[None]:
        """Note that `source` comes to be called `target` inside; other ranks wait to look."""
        words = self._board.words
        with self._lock:
            if self._over:
                yield
                return
            words[MOVING] = 1
            try:
                self.note(number, target)
                if threading.current_thread() in self._threads and not self._is_known(
                    number, source
                ):
                    self._add(APART, source, TAKEN, None)
                self._move(number, source, target)
                yield
            except OSError:
                self._move(number, target, source)  # it is where it was
                raise
            finally:
                words[MOVING] = 0
                words[TURN] += 1

    def _move(self, number: int, source: str, target: str) -> None:
        if not self._is_known(number, source):
            self._add(number, source, MOVED, target)
        for path in list(self._known):  # what is done there now is done to other files
            if any(path == top or path.startswith(top + "/") for top in (source, target)):
                del self._known[path]

    def agreed(self, path: str) -> None:
        """Note that the script itself has changed `path`, on all ranks.

        What threads make there from now on is new.
        """
        with self._lock:
            self._apart -= {
                name for name in self._apart if name == path or name.startswith(path + "/")
            }

    def meet(self) -> None:
        """Note for the other ranks, which wait here, which records came before this effect."""
        self._board.words[MET] = self._serial

    def forget(self, number: int) -> None:
        """Drop records from before effect `number`: all ranks have come through so many."""
        with self._lock:
            if not self._records or self._records[0][0] >= number:
                return
            gone = [record for record in self._records if record[0] < number]
            self._records = self._records[len(gone) :]
            for _, path, kind, value, _ in gone:
                self._let_go(kind, value)
                if self._known.get(path, (number,))[0] < number:
                    del self._known[path]
            posix.close(self._file)
            old = self._number
            self._file = self._begin()
            paths.remove(self._board.path(old))

    def end(self) -> None:
        """Let go of the old files that are kept alive, and close the journal."""
        with self._lock:
            self._over = True
            for _, _, kind, value, _ in self._records:
                self._let_go(kind, value)
            self._records.clear()
            posix.close(self._file)
            posix.close(self._lasting)
            if HERE.private is None:
                paths.remove(self._board.folder)  # else it is the launcher's

    def _begin(self) -> int:
        """Begin a new file with the records that other ranks may still need; return its handle."""
        words = self._board.words
        self._number += 1
        file = self._open(self._number)
        data = b"".join(map(_line, self._records))
        os.write(file, data)
        words[NUMBER] = BUSY  # nobody reads the old one by the length of the new
        words[LENGTH] = len(data)
        words[NUMBER] = self._number
        words[LIVE] = len(self._records) + words[LASTING]
        words[TURN] += 1
        return file

    def _open(self, number: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return posix.open(self._board.path(number), flags, 0o600)

    def _add(self, number: int, path: str, kind: str, value: Any) -> None:
        if len(self._records) >= PRUNE:
            self.forget(min(self._board.words[FIRST + rank] for rank in range(1, self._ranks)))
        self._serial += 1
        record = [number, path, kind, value, self._serial]
        words, line, lasts = self._board.words, _line(record), number == APART
        posix.write(self._lasting if lasts else self._file, line)
        if not lasts:
            self._records.append(record)
            self._known[path] = number, kind
        words[LASTING if lasts else LENGTH] += len(line)
        words[LIVE] = len(self._records) + words[LASTING]
        words[TURN] += 1

    def _is_known(self, number: int, path: str, how: str = GONE) -> bool:
        """Return whether what is at `path` now is noted; a new folder stands for all in it."""
        thread = threading.current_thread() in self._threads
        if thread and not self._apart.isdisjoint((path, *paths.above(path))):
            return True
        since, kind = self._known.get(path, (-1, ""))
        if since == number:
            return kind != CUT or how == GROWN  # its first bytes were left as they are
        return any(self._known.get(top) == (number, ABSENT) for top in paths.above(path))

    def _was(self, path: str, how: str = GONE) -> tuple[str, Any]:
        there = paths.seen(path, follow=False)
        if there is None:
            return ABSENT, None
        if stat.S_ISLNK(there.st_mode):
            return LINK, paths.link(path)
        if stat.S_ISDIR(there.st_mode):
            return TREE, self._tree(path)
        if how == GROWN:
            return CUT, there.st_size
        return KEPT, self._kept(path, there, how != GONE)

    def _tree(self, path: str) -> dict[str, Any]:
        return {name: self._was(f"{path}/{name}") for name in posix.listdir(path)}

    def _kept(self, path: str, there: os.stat_result, copied: bool) -> str:
        """Return where the file can be read from now on, nowhere ("") if that costs too much."""
        if not stat.S_ISREG(there.st_mode):
            return path
        try:
            if copied:
                self._copies += 1
                at = os.path.join(self._board.folder, f"was-{self._copies}")
                paths.copy(path, at)
                return at
            if len(self._handles) < MOST:
                handle = posix.open(path, os.O_RDONLY | os.O_CLOEXEC)
                at = f"/proc/{posix.getpid()}/fd/{handle}"
                self._handles[at] = handle
                return at
        except OSError:
            pass  # what rank 0 may not read, or has no room for, others do not find
        return ""

    def _let_go(self, kind: str, value: Any) -> None:
        if kind == TREE:
            for below in value.values():
                self._let_go(*below)
        elif kind == KEPT and value in self._handles:
            posix.close(self._handles.pop(value))
        elif kind == KEPT and value.startswith(self._board.folder + "/"):
            paths.remove(value)


def _fresh(path: str) -> str | None:
    """Make an empty file for the place of a large one; return its path.

    None, and the file will be copied, if it is small, has several names or is not this user's.
    """
    there = paths.seen(path, follow=False)
    if there is None or not stat.S_ISREG(there.st_mode) or there.st_size <= SMALL:
        return None
    if there.st_nlink != 1 or there.st_uid != posix.geteuid():
        return None
    beside = os.path.join(os.path.dirname(path), f".autoddp-{time.monotonic_ns():x}")
    try:
        handle = posix.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    posix.fchmod(handle, stat.S_IMODE(there.st_mode))
    posix.close(handle)
    return beside


def _line(record: list[Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"
