"""Open files that a program of rank 0's writes to: the others are told what it wrote."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from functools import partial
from typing import Any

from autoddp.effects.engine import Effects
from autoddp.effects.mirrored_io import whole

PART = 1 << 22  # bytes that travel at once
STANDARD = 2  # descriptors up to this one are no files of the script's
COPIES: set[int] = set()  # descriptors that the script does not hold


class OutputFiles:
    """The files that a program was given for its output; each rank has its own of them."""

    def __init__(self, effects: Effects, named: dict[str, Any]) -> None:
        self._effects = effects
        self._files: dict[str, int] = {}  # copies: the script may close its own before the end
        # one file for both is brought once
        numbers = {_number(named.get(stream)): stream for stream in ("stderr", "stdout")}
        for number, stream in numbers.items():
            if number > STANDARD and stat.S_ISREG(os.fstat(number).st_mode):
                self._files[stream] = os.dup(number)
        COPIES.update(self._files.values())
        self._starts = {stream: _place(number) for stream, number in self._files.items()}

    def bring(self) -> None:
        """Write on the other ranks what the program, which has ended, has written on rank 0."""
        effects = self._effects
        answer = effects.ask_rank0("what a program wrote", self._written)
        with effects.context.internal():
            for stream, (start, end) in answer.items():
                for at in range(start, end, PART):
                    read = partial(_read, self._files.get(stream, -1), min(PART, end - at), at)
                    body = effects.group.call(f"{stream} from {at}", read)
                    if effects.rank and stream in self._files:
                        os.lseek(self._files[stream], at, os.SEEK_SET)
                        whole(partial(os.write, self._files[stream]), body)
        self.close()

    def close(self) -> None:
        """Close this object's copies of the descriptors."""
        while self._files:
            _, number = self._files.popitem()
            COPIES.discard(number)
            with suppress(OSError):
                os.close(number)

    def __del__(self) -> None:
        self.close()

    def _written(self) -> dict[str, list[int]]:
        """Return where, in each file, the program has begun to write, and where it has ended."""
        ends = {stream: os.lseek(n, 0, os.SEEK_CUR) for stream, n in self._files.items()}
        return {stream: [self._starts[stream], end] for stream, end in ends.items()}


def _number(given: Any) -> int:
    """Return the descriptor of what a program is given, -1 where that has none."""
    if given is None or isinstance(given, int):
        return -1 if given is None else given
    try:
        return int(given.fileno())
    except (OSError, ValueError, AttributeError):
        return -1


def _place(number: int) -> int:
    """Return the place in the file where the next write will go."""
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND:
        return os.fstat(number).st_size
    return os.lseek(number, 0, os.SEEK_CUR)


def _read(number: int, size: int, at: int) -> bytes:
    """Read from a file that may be open for writing alone."""
    handle = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
    try:
        return os.pread(handle, size, at)
    finally:
        os.close(handle)
