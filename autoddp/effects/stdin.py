"""Standard input as all ranks see it: rank 0 reads, all get what it read.

What was read ahead stays on rank 0, unlike that of a pipe: `input`, `getpass`, threads and fetches
read there without the other ranks.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from autoddp.effects.engine import Effects, Mode

Prompting = Callable[[], AbstractContextManager[None]]  # what is entered while something is read


class SharedInput:
    """A layer of standard input; what is not read by it is this process's own."""

    _place = "stdin"

    def __init__(self, own: Any, effects: Effects, prompting: Prompting) -> None:
        self._own, self._effects, self._prompting = own, effects, prompting

    def _read(self, what: str, size: int | None) -> Any:
        act = partial(getattr(self._own, what), size)
        if self._effects.mode() is not Mode.SYNCED:
            return act()
        with self._prompting():
            return self._effects.ask_rank0(f"{self._place}.{what}", act)

    def readline(self, size: int | None = -1, /) -> Any:
        """Return the next line, on all ranks."""
        return self._read("readline", size)

    def read(self, size: int | None = -1, /) -> Any:
        """Return what is left, or `size` characters or bytes of it, on all ranks."""
        return self._read("read", size)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Return this process's own descriptor."""
        return self._own.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class SharedStdin(SharedInput, io.TextIOBase):
    """The text of standard input, the same on all ranks."""

    def __init__(self, own: Any, effects: Effects, terminal: bool, prompting: Prompting) -> None:
        super().__init__(own, effects, prompting)
        self._terminal = terminal

    @property
    def buffer(self) -> StdinBytes:
        """Return the bytes below the text."""
        return StdinBytes(self._own.buffer, self._effects, self._prompting)

    def isatty(self) -> bool:
        """Return whether rank 0's standard input is a terminal."""
        return self._terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of the text."""
        return self._own.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """Return how bytes that cannot be decoded are handled."""
        return self._own.errors

    def close(self) -> None:
        """Close what is read."""
        self._own.close()


class StdinBytes(SharedInput, io.BufferedIOBase):
    """The bytes of standard input, the same on all ranks."""

    _place = "stdin.buffer"

    def read1(self, size: int = -1, /) -> bytes:
        """Return what is there, at most `size` bytes."""
        return self._read("read1", size)

    def peek(self, size: int = 0, /) -> bytes:
        """Return what comes next, and leave it there."""
        return self._read("peek", size)

    def isatty(self) -> bool:
        """Return whether rank 0's standard input is a terminal."""
        return os.isatty(self.fileno())

    def close(self) -> None:
        """Do nothing: the buffer is Python's, which keeps it."""
