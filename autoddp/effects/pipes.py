"""The pipes of a program that rank 0 runs: every rank reads what rank 0 read, and rank 0 writes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

from autoddp.effects.engine import Mode
from autoddp.effects.unhurried import Unhurried, carried, taken

ALONE = "a program's pipe has its descriptor on rank 0 alone; read and write it by its methods"


class End:
    """One end of a pipe; `own` is the real one, on rank 0."""

    def __init__(self, own: Any, told: Unhurried, name: str, writes: bool) -> None:
        self._own, self._told, self._name, self._writes = own, told, name, writes
        self._closing = False

    def _ask(self, what: str, act: Callable[[Any], Any]) -> Any:
        if self._closing and what != "close":
            raise ValueError("I/O operation on closed file.")
        mode = self._told.mode()
        if mode is Mode.PASS_THROUGH and self._own is not None:
            return act(self._own)
        told = self._told.tell(mode, f"pipe.{what}", self._name, lambda: carried(act(self._own)))
        return taken(told)

    def readable(self) -> bool:
        return not self._writes

    def writable(self) -> bool:
        return self._writes

    def fileno(self) -> int:
        """Return rank 0's descriptor, for what it does for all: another program may read from it.

        Raises:
            io.UnsupportedOperation: The script asks, or another rank does.
        """
        if self._own is None or self._told.mode() is not Mode.PASS_THROUGH:
            raise io.UnsupportedOperation(ALONE)
        return int(self._own.fileno())

    def write(self, data: Any, /) -> int:
        """Write `data` on rank 0, and return how much was written."""
        return int(self._ask("write", lambda own: own.write(data)))

    def writelines(self, lines: Iterable[Any], /) -> None:
        """Write the lines on rank 0."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the pipe on rank 0."""
        if self._writes and not self._closing:
            self._ask("flush", lambda own: own.flush())

    def close(self) -> None:
        """Close rank 0's end of the pipe.

        What that raises for an end that writes (the program has ended), all ranks raise.
        """
        if self._closing:
            return
        self._closing = True
        try:
            if self._writes:
                self._ask("close", lambda own: own.close())
            elif self._own is not None:
                self._own.close()
        finally:
            super().close()  # type: ignore[misc]

    def shut(self) -> None:
        """Close this rank's end only, since rank 0's is closed."""
        self._closing = True
        super().close()  # type: ignore[misc]

    def __del__(self) -> None:
        """Do nothing: the real end closes itself, and nobody is asked then."""

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("_own") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._own, name)


class BytesEnd(End, io.BufferedIOBase):
    """One end of a pipe of bytes."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return what rank 0 read."""
        return bytes(self._ask("read", lambda own: own.read(size)))

    def read1(self, size: int = -1, /) -> bytes:
        """Return what rank 0 read in one step."""
        return bytes(self._ask("read1", lambda own: own.read1(size)))

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the line that rank 0 read."""
        return bytes(self._ask("readline", lambda own: own.readline(size)))

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        """Return the lines that rank 0 read."""
        return (
            io.BytesIO(self.read()).readlines()
            if hint in (None, -1)
            else super().readlines(hint or -1)
        )

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer` with what rank 0 read, and return the number of bytes."""
        data = self.read(memoryview(buffer).nbytes)
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def peek(self, size: int = 0, /) -> bytes:
        """Return what rank 0 sees, and leave it there."""
        return bytes(self._ask("peek", lambda own: own.peek(size)))


class TextEnd(End, io.TextIOBase):
    """One end of a pipe of text."""

    def __init__(
        self, own: Any, told: Unhurried, name: str, writes: bool, encoding: str, errors: Any
    ) -> None:
        super().__init__(own, told, name, writes)
        self._encoding, self._errors = encoding, errors or "strict"

    def read(self, size: int | None = -1, /) -> str:
        """Return what rank 0 read."""
        return str(self._ask("read", lambda own: own.read(size)))

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        """Return the line that rank 0 read."""
        return str(self._ask("readline", lambda own: own.readline(size)))

    def readlines(self, hint: int | None = -1, /) -> list[str]:  # type: ignore[override]
        """Return the lines that rank 0 read."""
        return (
            io.StringIO(self.read()).readlines()
            if hint in (None, -1)
            else super().readlines(hint or -1)
        )

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of the text."""
        return self._encoding

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Return how bytes that cannot be decoded are handled."""
        return self._errors

    @property
    def buffer(self) -> BytesEnd:
        """Return the end of the pipe of bytes below the text."""
        own = self._own.buffer if self._own is not None else None
        return BytesEnd(own, self._told, f"{self._name}/buffer", self._writes)
