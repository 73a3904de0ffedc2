"""The reader of rank 0's journal on the other ranks: it tells where earlier content is now."""

from __future__ import annotations

import json
import os
import posix
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from autoddp.effects import paths
from autoddp.effects.journal import (
    ABSENT,
    APART,
    BUSY,
    CUT,
    FIRST,
    LASTING,
    LENGTH,
    LINK,
    LIVE,
    MET,
    MOVED,
    MOVING,
    NUMBER,
    TAKEN,
    TREE,
    TURN,
    Board,
)

TICK = 1e-4  # seconds


class Past:
    """The disk as it was for one process at the point to which this rank has come."""

    def __init__(self, board: Board, rank: int, room: Callable[[str], str]) -> None:
        self._board, self._word, self._room = board, FIRST + rank, room
        self._turn, self._file = 0, 0
        # bytes that were read: of what is forgotten some day, and (True) of what never is
        self._read = {False: 0, True: 0}
        self._records: dict[int, Any] = {}  # by their serial numbers
        self._index: dict[str, list[int]] = {}
        # the newest record when a path came to be on all ranks, and by the folders above it
        self._agreed: dict[str, int] = {}
        self._above: dict[str, int] = {}
        self._made: dict[str, str] = {}
        self.number = 0
        self._lock, self._pid = threading.RLock(), posix.getpid()  # threads read, too

    def idle(self) -> bool:
        """Return whether rank 0 has changed nothing that others might not see."""
        return self._board.words[LIVE] == 0

    def come(self, number: int) -> None:
        """Tell rank 0 that this rank has come through `number` effects."""
        self._board.words[self._word] = self.number = number

    def turn(self) -> int:
        """Return a number that changes with each record."""
        return self._board.words[TURN]

    def mine(self) -> threading.RLock:
        """Return the lock for one thread at a time to look; a forked process gets a new one."""
        if self._pid != posix.getpid():  # forked from this rank, perhaps while a thread looked
            self._pid, self._lock = posix.getpid(), threading.RLock()
            self._turn = self._file = -1
        return self._lock

    def refresh(self) -> int:
        """Read what is new, one thread at a time, and return the number of this turn."""
        with self.mine():
            return self._refresh()

    def _refresh(self) -> int:
        words = self._board.words
        while words[TURN] != self._turn or words[MOVING]:
            if words[MOVING]:  # rank 0 renames something: a few microseconds
                time.sleep(TICK)
                continue
            turn, number, length = words[TURN], words[NUMBER], words[LENGTH]
            if number == BUSY or words[NUMBER] != number:
                time.sleep(TICK)
                continue
            try:
                if number != self._file:
                    self._begin(number)
                self._more(number, length)
                self._more(0, words[LASTING])
            except FileNotFoundError:
                if words[NUMBER] == number:  # rank 0 has ended
                    self._turn = turn
                continue
            self._turn = turn
        return self._turn

    def _begin(self, number: int) -> None:
        """Drop the old file's records: the new one holds those that are still needed."""
        self._records = {
            serial: record for serial, record in self._records.items() if record[0] == APART
        }
        self._index.clear()
        for serial, record in self._records.items():
            self._index.setdefault(record[1], []).append(serial)
        self._made.clear()
        self._file, self._read[False] = number, 0

    def _more(self, number: int, length: int) -> None:
        read, lasts = self._read, number == 0
        if length <= read[lasts]:
            return
        handle = posix.open(self._board.path(number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = posix.pread(handle, length - read[lasts], read[lasts])
        finally:
            posix.close(handle)
        read[lasts] += len(data)
        for line in data.splitlines():
            record = json.loads(line)
            self._index.setdefault(record[1], []).append(record[4])
            self._records[record[4]] = record

    def met(self, path: str) -> None:
        """Note that the script changed `path` on all ranks: what threads made there is for all.

        Rank 0 may be ahead by now: what its threads have made since it met the others is new.
        """
        self._agree(path, self._board.words[MET])

    def shared(self, path: str) -> None:
        """Note that what rank 0's thread has made at `path` is this rank's thread's, too."""
        with self.mine():
            self.refresh()
            self._agree(path, max(self._records, default=0))

    def _agree(self, path: str, newest: int) -> None:
        if self._board.words[LASTING] == 0:
            return
        with self.mine():
            for names, known in (((path,), self._agreed), (paths.above(path), self._above)):
                known.update({name: max(newest, known.get(name, 0)) for name in names})

    def resolve(self, path: str, since: int = 0) -> str:
        """Return where the earlier content of `path` is: there, elsewhere, or nowhere ("")."""
        first = self._first(path, since) if self._records else None
        if first is None:
            return path
        _, top, kind, value, _ = self._records[first]
        rest = path[len(top) :]
        if kind == MOVED:
            return self.resolve(value + rest, first + 1)
        if kind == TREE:
            return self._in_tree(first, value, rest)
        if rest or kind == ABSENT:
            return ""
        if kind == CUT:
            return self._view(first, path, lambda at: self._cut(path, at, value, first))
        if kind == LINK:
            return self._view(first, path, lambda at: posix.symlink(value, at))
        return str(value)

    def names(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Yield each name in a folder that rank 0 has changed, and whether it was there before."""
        for path in list(self._index):
            if os.path.dirname(path) == folder and self._first(path, 0) is not None:
                yield os.path.basename(path), bool(self.resolve(path))
        if self._in_a_threads(folder):
            for name in paths.names(folder):
                if self._first(f"{folder}/{name}", 0) is not None:
                    yield name, bool(self.resolve(f"{folder}/{name}"))

    def taken(self, path: str) -> bool:
        """Return whether a thread of rank 0's has removed or renamed `path` or a folder above."""
        return any(
            self._records[at][2] == TAKEN and not self._is_agreed(path, at) for at in self._of(path)
        )

    def _first(self, path: str, since: int) -> int | None:
        found = (
            at for at in self._of(path) if at >= since and self._hides(path, *self._records[at])
        )
        return min(found, default=None)

    def _of(self, path: str) -> Iterator[int]:
        """Return the serial numbers of the records of a path, and of the folders above it."""
        return (at for top in (path, *paths.above(path)) for at in self._index.get(top, ()))

    def _hides(self, path: str, number: int, _: str, kind: str, __: Any, serial: int) -> bool:
        if kind == TAKEN or number < self.number:
            return False
        return number != APART or not self._is_agreed(path, serial)

    def _is_agreed(self, path: str, serial: int) -> bool:
        """Return whether the script changed the path, or one above or below, since that record."""
        if self._above.get(path, 0) >= serial:
            return True
        return any(self._agreed.get(top, 0) >= serial for top in (path, *paths.above(path)))

    def _in_a_threads(self, folder: str) -> bool:
        return any(
            self._records[at][0] == APART and self._records[at][2] == ABSENT
            for at in self._of(folder)
        )

    def _in_tree(self, record: int, tree: dict[str, Any], rest: str) -> str:
        kind: str = TREE
        value: Any = tree
        for name in filter(None, rest.split("/")):
            if kind != TREE or name not in value:
                return ""
            kind, value = value[name]
        if kind == TREE:
            names = value
            return self._view(record, rest, lambda at: _shell(at, names))
        if kind == LINK:
            return self._view(record, rest, lambda at: posix.symlink(value, at))
        return str(value or "")

    def _cut(self, path: str, at: str, size: int, record: int) -> None:
        paths.copy(self.resolve(path, record + 1), at, size)

    def _view(self, record: int, path: str, make: Callable[[str], None]) -> str:
        """Return the path of a stand-in for `path`, which `make` makes once for a record."""
        key = f"{record} {path}"
        if key not in self._made:
            at = self._room(path)
            make(at)
            self._made[key] = at
        return self._made[key]


def _shell(at: str, names: dict[str, Any]) -> None:
    """Make a folder as it was, to be listed; what was in its files is found by their names."""
    posix.mkdir(at, 0o700)
    for name, (kind, value) in names.items():
        if kind == TREE:
            posix.mkdir(f"{at}/{name}")
        elif kind == LINK:
            posix.symlink(value, f"{at}/{name}")
        else:
            posix.close(posix.open(f"{at}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
