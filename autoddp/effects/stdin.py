"""Standard input as all ranks see it: rank 0 reads, all get what it read."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from autoddp.effects.engine import Effects, Mode
from autoddp.report import users_line


class SharedStdin(io.TextIOBase):
    """The text of standard input, the same on all ranks."""

    def __init__(self, own: Any, effects: Effects, terminal: bool) -> None:
        self._own, self._effects, self._terminal = own, effects, terminal

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        """Return the next line, on all ranks."""
        return self._read("readline", lambda: self._own.readline(size))

    def read(self, size: int | None = -1, /) -> str:
        """Return what is left, or `size` characters of it, on all ranks."""
        return self._read("read", lambda: self._own.read(size))

    def readable(self) -> bool:
        return True

    @property
    def buffer(self) -> Bytes:
        """Return the bytes below the text."""
        return Bytes(self._own.buffer, self._effects)

    def isatty(self) -> bool:
        """Return whether rank 0's standard input is a terminal."""
        return self._terminal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def fileno(self) -> int:
        """Return this process's own descriptor."""
        return self._own.fileno()

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

    def _read(self, what: str, act: Callable[[], str]) -> str:
        if self._effects.mode() is not Mode.SYNCED:
            return act()
        return self._effects.ask_rank0(f"stdin.{what}", act)


class Bytes(io.BufferedIOBase):
    """The bytes of standard input, the same on all ranks."""

    def __init__(self, own: Any, effects: Effects) -> None:
        self._own, self._effects = own, effects

    def read(self, size: int | None = -1, /) -> bytes:
        """Return what is left, or `size` bytes of it."""
        return self._read("read", lambda: self._own.read(size))

    def read1(self, size: int = -1, /) -> bytes:
        """Return what is there, at most `size` bytes."""
        return self._read("read1", lambda: self._own.read1(size))

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the next line."""
        return self._read("readline", lambda: self._own.readline(size))

    def peek(self, size: int = 0, /) -> bytes:
        """Return what comes next, and leave it there."""
        return self._read("peek", lambda: self._own.peek(size))

    def readable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def fileno(self) -> int:
        """Return this process's own descriptor."""
        return int(self._own.fileno())

    def isatty(self) -> bool:
        """Return whether rank 0's standard input is a terminal."""
        return os.isatty(self.fileno())

    def close(self) -> None:
        """Do nothing: the buffer is Python's, which keeps it."""

    def _read(self, what: str, act: Callable[[], bytes]) -> bytes:
        if self._effects.mode() is not Mode.SYNCED:
            return act()
        with self._effects.context.internal():
            return self._effects.group.call(f"stdin.buffer.{what} at {users_line()}", act)
