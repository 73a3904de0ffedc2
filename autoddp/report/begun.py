"""A watch for a line that the script has begun, a bar say, which ours would cut in two."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


class Begun:
    """A watch on the script's streams, which calls `ended` whenever no line is begun any more."""

    def __init__(self, ended: Callable[[], None] = lambda: None) -> None:
        self._ended = ended
        self._tails: dict[int, str] = {}  # by stream: what stands in its last line

    def __call__(self) -> bool:
        """Return whether a line is begun on any of the streams."""
        return any(self._tails.values())

    def end(self) -> str:
        """Return what ends a begun line, if there is one: on a terminal all streams share it."""
        begun = self()
        self._tails.clear()
        return "\n" if begun else ""

    def watch(self, stream: Any, undo: ExitStack) -> None:
        """Watch a stream by a `write` of its own, which `print` and others look up each time."""
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
