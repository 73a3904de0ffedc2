"""Find out whether the script's last line is unfinished, so that no other line is inserted."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from mmap import mmap
from typing import Any

MAX_KEPT = 80  # characters of a line that are kept
ENDS = re.compile(r"[\n\r]|\x1b\[2K")  # ends of a line; the last one clears it
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # invisible control sequences of a terminal


class SharedFlag:
    """A byte shared by rank 0 and its launcher: whether the script's last line is unfinished."""

    def __init__(self) -> None:
        self._byte = mmap(-1, 1)

    def set(self, unfinished: bool) -> None:
        """Set whether the last line is unfinished."""
        self._byte[0] = unfinished

    def end(self) -> str:
        """Return the newline to end an unfinished line, if there is one."""
        unfinished, self._byte[0] = self._byte[0], 0
        return "\n" if unfinished else ""


class OpenLine:
    """The unfinished last lines of streams; `finished` is called when there is none any more."""

    def __init__(
        self, finished: Callable[[], None] = lambda: None, flag: SharedFlag | None = None
    ) -> None:
        self._finished, self._flag = finished, flag or SharedFlag()
        self._tails: dict[int, str] = {}  # by stream: the text of its last line

    def __call__(self) -> bool:
        """Return whether any stream has an unfinished line."""
        return any(self._tails.values())

    def end(self) -> str:
        """Return the newline to end an unfinished line; on a terminal, streams share the line."""
        self._tails.clear()
        return self._flag.end()

    def watch(self, stream: Any, undo: ExitStack) -> None:
        """Watch a stream by replacing its `write`, which `print` looks up at each call."""
        if not hasattr(stream, "__dict__"):
            return
        previous, plain, key = vars(stream).get("write"), stream.write, id(stream)

        def write(text: str) -> int:
            count: int = plain(text)
            # a cleared progress bar is not a line
            line = ENDS.split(self._tails.get(key, "") + text)[-1]
            self._tails[key] = CONTROLS.sub("", line).strip()[-MAX_KEPT:]
            unfinished = self()
            self._flag.set(unfinished)
            if not unfinished:
                self._finished()
            return count

        def restore() -> None:
            if vars(stream).get("write") is write:
                if previous is None:
                    del stream.write
                else:
                    stream.write = previous

        stream.write = write
        undo.callback(restore)
