"""What programs of rank 0's put out, for all ranks: by pipes, by open files, and on the disk."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from autoddp.effects.engine import Effects, Mode

Ask = Callable[[Callable[[], Any]], Any]
BY_DESCRIPTOR = "a program's pipe has its descriptor on rank 0 alone; read it by its methods"


def shared(pipe: Any, ask: Ask, effects: Effects) -> Any:
    """Return a pipe of the layers of `pipe` that all ranks read as rank 0 does."""
    text = pipe if isinstance(pipe, io.TextIOWrapper) else None
    raw: Any = pipe
    while hasattr(raw, "detach"):
        raw = raw.detach()
    made: Any = Pipe(raw, ask, effects)
    if raw is not pipe:
        made = io.BufferedReader(made)
    return made if text is None else io.TextIOWrapper(made, text.encoding, text.errors)


class Pipe(io.RawIOBase):
    """The lowest layer of a pipe that all ranks read; the layers above it hold the same on all."""

    def __init__(self, own: Any, ask: Ask, effects: Effects) -> None:
        self._own, self._ask, self._effects = own, ask, effects

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Return this rank's descriptor to `Popen`, for another program.

        Raises:
            io.UnsupportedOperation: The script asks.
        """
        inside = self._effects.mode() is Mode.PASS_THROUGH
        if not inside and sys._getframe(1).f_code.co_filename != subprocess.__file__:
            raise io.UnsupportedOperation(BY_DESCRIPTOR)
        return int(self._own.fileno())

    def readinto(self, buffer: Any, /) -> int | None:
        """Fill `buffer` with what rank 0 finds in the pipe as soon as there is anything."""
        data = self._ask(lambda: self._own.read(len(buffer)))
        if data is None:
            return None
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> Any:
        """Return all that rank 0 reads until the pipe ends; Python would ask for each part."""
        return self._ask(self._own.readall)

    def close(self) -> None:
        """Close this rank's end, which nobody waits for."""
        super().close()
        self._own.close()


def see(effects: Effects) -> None:
    """Drop this rank's copies of what is on the disk: a program has run, the disk's are newer."""
    if effects.rank and effects.context.in_job():
        with effects.context.internal():
            effects.overlay.settle()


def regular(numbers: set[int]) -> Iterator[tuple[io.FileIO, int]]:
    """Open regular files among descriptors once more, and tell the places where they are."""
    for number in sorted(numbers):
        if number > 2 and stat.S_ISREG(os.fstat(number).st_mode):
            yield io.FileIO(os.dup(number), "w"), os.lseek(number, 0, os.SEEK_CUR)


def read(number: int, start: int) -> bytes:
    """Return what is in an open file from `start` on."""
    with open(f"/proc/self/fd/{number}", "rb") as file:  # which may be open for writing alone
        file.seek(start)
        return file.read()
