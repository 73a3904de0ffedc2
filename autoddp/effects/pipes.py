"""Streams that all ranks read from rank 0: standard input, pipes of programs, bodies of responses.

Only the lowest layer is shared. The layers above it are Python's own, and have the same state on
all ranks, since all get the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

Ask = Callable[[Callable[[], Any]], Any]


def shared(stream: Any, ask: Ask, **facts: Any) -> Any:
    """Return a stream with the layers of `stream`, whose bytes come from rank 0 by `ask`.

    Args:
        stream: A readable stream of text or bytes.
        ask: Calls its argument on rank 0, and returns the result on all ranks.
        facts: Attributes of the lowest layer, such as its `fileno`.
    """
    buffer = getattr(stream, "buffer", stream)
    raw = SharedStream(getattr(buffer, "raw", buffer), ask)
    vars(raw).update(facts, stream=stream)  # if it were freed, it would close its lower layers
    reader: Any = raw if buffer is raw.own else io.BufferedReader(raw)
    text = isinstance(stream, io.TextIOWrapper)
    return io.TextIOWrapper(reader, stream.encoding, stream.errors) if text else reader


class SharedStream(io.RawIOBase):
    """The lowest layer of a stream that all ranks read."""

    def __init__(self, own: Any, ask: Ask) -> None:
        self.own, self.ask = own, ask
        self._read = getattr(own, "read1", own.read)  # what has arrived, not all of it

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        """Read into `buffer` what rank 0 reads."""
        data = self.ask(lambda: self._read(len(buffer)))
        if data is None:
            return None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close this rank's end, without waiting for other ranks."""
        super().close()
        self.own.close()
