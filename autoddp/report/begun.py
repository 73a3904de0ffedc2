"""A watch for a line that the script has begun, which a line of autoddp would cut in two."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from mmap import mmap
from typing import Any

MOST = 80  # characters of a line that are kept
ENDS = re.compile(
    r"[\n\r]|\x1b\[2K"
)  # of what stands in a line: a return and an order to clear, too
ORDERS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # to a terminal, which shows nothing of them


class SharedFlag:
    """A byte that rank 0 and its launcher share: whether the script has begun a line."""

    def __init__(self) -> None:
        self._byte = mmap(-1, 1)

    def set(self, begun: bool) -> None:
        """Set whether a line is begun."""
        self._byte[0] = begun

    def end(self) -> str:
        """Return what ends a begun line, if there is one."""
        begun, self._byte[0] = self._byte[0], 0
        return "\n" if begun else ""


class Begun:
    """A watch on the script's streams, which calls `ended` whenever no line is begun any more."""

    def __init__(
        self, ended: Callable[[], None] = lambda: None, flag: SharedFlag | None = None
    ) -> None:
        self._ended, self._flag = ended, flag or SharedFlag()
        self._tails: dict[int, str] = {}  # by stream: what stands in its last line

    def __call__(self) -> bool:
        """Return whether a line is begun on any of the streams."""
        return any(self._tails.values())

    def end(self) -> str:
        """Return what ends a begun line, if there is one: on a terminal all streams share it."""
        self._tails.clear()
        return self._flag.end()

    def watch(self, stream: Any, undo: ExitStack) -> None:
        """Watch a stream by an own `write`, which `print` and others look up each time."""
        if not hasattr(stream, "__dict__"):
            return
        before, plain, key = vars(stream).get("write"), stream.write, id(stream)

        def write(text: str) -> int:
            count: int = plain(text)
            # a bar that was cleared is no line any more
            line = ENDS.split(self._tails.get(key, "") + text)[-1]
            self._tails[key] = ORDERS.sub("", line).strip()[-MOST:]
            begun = self()
            self._flag.set(begun)
            if not begun:
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
