"""Whether the script has begun a line of its output, a bar or half a sentence, that ours would cut in two."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


class Begun:
    """Watches what is written to the script's streams; whoever waits for the end of a line is called then."""

    def __init__(self, ended: Callable[[], None] = lambda: None) -> None:
        self._ended = ended
        self._tails: dict[int, str] = {}  # by stream: what stands in its last line

    def __call__(self) -> bool:
        """Whether it has, on any of them."""
        return any(self._tails.values())

    def end(self) -> str:
        """What ends such a line, if there is one: on a terminal it is one line for all streams."""
        begun = self()
        self._tails.clear()
        return "\n" if begun else ""

    def watch(self, stream: Any, undo: ExitStack) -> None:
        """By its own `write`, which `print` and all others look up at each call."""
        if not hasattr(stream, "__dict__"):
            return
        before, plain, key = vars(stream).get("write"), stream.write, id(stream)

        def write(text: str) -> int:
            count: int = plain(text)
            line = self._tails.get(key, "") + text
            # a bar that was cleared, and whatever stands before its return, is no line any more
            self._tails[key] = line[max(line.rfind("\n"), line.rfind("\r")) + 1 :].strip()
            if not self():
                self._ended()
            return count

        def put_back() -> None:
            if vars(stream).get("write") is write:
                if before is None:
                    del stream.write
                else:
                    stream.write = before

        stream.write = write
        undo.callback(put_back)
