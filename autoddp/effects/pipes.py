"""The pipes of a program that rank 0 runs: every rank reads what rank 0 read, and rank 0 writes."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from typing import Any

from autoddp.effects.engine import Mode
from autoddp.effects.unhurried import Unhurried, carried, taken

ALONE = "a program's pipe has its descriptor on rank 0 alone; read and write it by its methods"


class SharedRaw(io.RawIOBase):
    """The lowest layer of a pipe; the layers above it are Python's, and hold the same on all ranks.

    Rank 0 reads and writes for all. To read ahead is safe since no rank may read a pipe by itself.
    """

    filling = False  # whether all that is asked for is to be read, however long that takes
    _dropped = False

    def __init__(self, own: Any, unhurried: Unhurried, place: str, name: int, writes: bool) -> None:
        """Take over `own`, the real layer, which rank 0 alone has; `name` is its descriptor."""
        self._own, self._unhurried, self._place, self._writes = own, unhurried, place, writes
        self.name, self.mode = name, "wb" if writes else "rb"

    def _ask(self, what: str, act: Callable[[Any], Any]) -> Any:
        unhurried, own = self._unhurried, self._own
        return taken(unhurried.tell(unhurried.mode(), what, self._place, lambda: carried(act(own))))

    def check(self) -> None:
        """Raise an error where this rank cannot ask rank 0; a dropped file asks for nothing.

        Raises:
            OutOfReach: It is so in a trial, and on other ranks in a data set's fetch.
        """
        if not self._dropped:
            self._unhurried.check(self._unhurried.mode(), "a program's pipe")

    def readable(self) -> bool:
        return not self._writes

    def writable(self) -> bool:
        return self._writes

    def fileno(self) -> int:
        """Return rank 0's descriptor, for what it does for all: another program may read from it.

        Raises:
            io.UnsupportedOperation: The script asks, or another rank does.
        """
        if self._own is None or self._unhurried.mode() is not Mode.PASS_THROUGH:
            raise io.UnsupportedOperation(ALONE)
        return int(self._own.fileno())

    def readinto(self, buffer: Any, /) -> int | None:
        """Fill `buffer` with what rank 0 finds in the pipe as soon as there is anything."""
        size = memoryview(buffer).nbytes
        # up to the size of a buffer, the layer above asks for more than the script does
        whole = self.filling and size > io.DEFAULT_BUFFER_SIZE
        data = self._ask("pipe.read", lambda own: _full(own, size) if whole else own.read(size))
        if data is None:
            return None
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def readall(self) -> Any:
        """Return all that rank 0 reads until the pipe ends; Python would ask for each part."""
        return self._ask("pipe.read", lambda own: own.readall())

    def write(self, data: Any, /) -> Any:
        """Write on rank 0, and return how much was written.

        Of a file that is dropped, ranks may not be at the same place: nobody is asked.
        """
        if not self._dropped:
            return self._ask("pipe.write", lambda own: own.write(data))
        return self._own.write(data) if self._own is not None else memoryview(data).nbytes

    def close(self) -> None:
        """Close this rank's end, and the real one on rank 0, which nobody waits for."""
        try:
            super().close()
        finally:
            if self._own is not None:
                self._own.close()

    def _dealloc_warn(self, source: Any) -> None:
        """Note that Python closes `source`, which the script has dropped, as its layers say."""
        self._dropped = True
        if self._own is not None:
            self._own._dealloc_warn(source)


def _checked(original: Any, filling: bool = False) -> Any:
    """Return the method `original` of a layer, for which rank 0 must be in reach.

    It is needed, too, where the layer answers by what it holds: other ranks would answer otherwise.
    """

    @wraps(original)
    def method(self: Any, *given: Any) -> Any:
        layer = getattr(self, "buffer", self)
        raw: SharedRaw = getattr(layer, "raw", layer)
        raw.check()
        raw.filling = filling
        try:
            return original(self, *given)
        finally:
            raw.filling = False

    return method


class SharedReader(io.BufferedReader):
    """The layer that buffers what is read."""

    peek = _checked(io.BufferedReader.peek)
    read = _checked(io.BufferedReader.read, filling=True)
    read1 = _checked(io.BufferedReader.read1)
    readinto = _checked(io.BufferedReader.readinto, filling=True)
    readinto1 = _checked(io.BufferedReader.readinto1)
    readline = _checked(io.BufferedReader.readline)


class SharedWriter(io.BufferedWriter):
    """The layer that buffers what is written."""

    flush = _checked(io.BufferedWriter.flush)
    write = _checked(io.BufferedWriter.write)


class SharedText(io.TextIOWrapper):
    """The layer of a pipe of text."""

    read = _checked(io.TextIOWrapper.read)
    readline = _checked(io.TextIOWrapper.readline)


def bare(pipe: Any) -> Any:
    """Take the lowest layer out of a pipe of `Popen`'s."""
    while hasattr(pipe, "detach"):
        pipe = pipe.detach()
    return pipe


def layered(raw: SharedRaw, process: Any, bufsize: int | None, size: int) -> Any:
    """Put on `raw` the layers that `Popen` puts on a pipe; `size` is that of its usual buffer."""
    writes = raw.writable()
    pipe: Any = raw
    bufsize = -1 if bufsize is None else bufsize
    if bufsize:
        buffered = SharedWriter if writes else SharedReader
        pipe = buffered(raw, bufsize if bufsize > 1 else size)
    if not process.text_mode:
        return pipe
    lines = writes and bufsize == 1
    return SharedText(
        pipe, process.encoding, process.errors, line_buffering=lines, write_through=writes
    )


def _full(own: Any, size: int) -> bytes:
    """Read `size` bytes, or what comes until the pipe ends."""
    data = bytearray()
    while len(data) < size and (part := own.read(size - len(data))):
        data += part
    return bytes(data)
