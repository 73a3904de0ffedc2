"""Streams that all ranks read as rank 0 reads them: standard input, and the pipes of programs.

Only the lowest layer is shared. The layers above it are Python's own, and hold the same on all
ranks, since all get the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

Ask = Callable[[Callable[[], Any]], Any]


def shared(stream: Any, ask: Ask, **facts: Any) -> Any:
    """Return a stream of the layers of `stream`, whose bytes come from rank 0 by `ask`.

    Args:
        stream: A stream that is read, of text or bytes.
        ask: Returns on all ranks what its argument returns on rank 0.
        facts: Attributes of the lowest layer, such as its `fileno`.
    """
    buffer = getattr(stream, "buffer", stream)
    raw = SharedStream(getattr(buffer, "raw", buffer), ask)
    vars(raw).update(facts, stream=stream)  # whose end would close what is below it
    made: Any = raw if buffer is raw.own else io.BufferedReader(raw)
    text = isinstance(stream, io.TextIOWrapper)
    return io.TextIOWrapper(made, stream.encoding, stream.errors) if text else made


class SharedStream(io.RawIOBase):
    """The lowest layer of a stream that all ranks read."""

    def __init__(self, own: Any, ask: Ask) -> None:
        self.own, self.ask = own, ask

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        """Fill `buffer` with what rank 0 finds as soon as there is anything."""
        data = self.ask(lambda: self.own.read(len(buffer)))
        if data is None:
            return None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close this rank's end, which nobody waits for."""
        super().close()
        self.own.close()
