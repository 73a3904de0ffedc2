"""What the script opens by `os.open` is rank 0's file, as what it opens by `open` is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.outside.effects import Mode, Outward, stands_for
from autoddp.outside.layers import Handle, whole
from autoddp.outside.opened import Opened
from autoddp.outside.outcome import Outcome
from autoddp.patching import patch

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# On scratch the file is there already, and this rank's own.
NOT_THERE = os.O_EXCL | os.O_NOFOLLOW | getattr(os, "O_DIRECT", 0)
NAMELESS = getattr(os, "O_TMPFILE", 0)


class Descriptors(Outward):
    """Rank 0 writes; others get a descriptor on their scratch, and learn how it went."""

    name: ClassVar[str] = "descriptors"
    without: ClassVar[str] = "every rank writes what it opens by os.open"

    def setup(self, undo: ExitStack) -> None:
        """None is known yet."""
        super().setup(undo)
        self.opened, self.handles = Opened(self.effects), self.effects.handles
        undo.callback(self.handles.clear)

    @patch(
        "os:open",
        why="what the script opens to write is rank 0's file; others read what they wrote",
        hot=True,
    )
    def open_once(self, original: Callable[..., int]) -> Callable[..., int]:
        """By a path; what is below an open folder is found through it."""

        @stands_for(original)
        def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            def plain() -> int:
                return original(path, flags, mode, dir_fd=dir_fd)

            writes = flags & WRITES and (not NAMELESS or flags & NAMELESS != NAMELESS)
            if not (writes or self.effects.scratch.overlay) or not isinstance(
                path, (str, bytes, os.PathLike)
            ):
                return plain()
            what = self.effects.users()
            if what is Mode.PLAIN:
                return plain()
            if what is Mode.TRIAL and writes:
                return original(os.devnull, flags & os.O_ACCMODE)
            if not writes:
                return original(self._found(path, dir_fd), flags, mode, dir_fd=dir_fd)
            private = flags & ~NOT_THERE | os.O_CREAT
            return self._open(
                what, plain, path, dir_fd, flags, lambda at: original(at, private, mode | 0o600)
            )

        return open

    @patch(
        "os:close", why="ranks meet where a descriptor of one file is closed, and learn how it went", hot=True
    )
    def close_once(self, original: Callable[[int], None]) -> Callable[[int], None]:
        """After it, the file is complete for all."""
        handles = self.handles

        @stands_for(original)
        def close(fd: int) -> None:
            if fd not in handles:
                original(fd)
                return
            self._meet("os.close", handles.pop(fd), lambda: original(fd))

        return close

    @patch("os:fsync", "os:fdatasync", why="how it went all ranks learn", hot=True)
    def sync_once(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        """As a file's `flush()`."""
        handles = self.handles

        @stands_for(original)
        def sync(fd: Any) -> None:
            if type(fd) is not int or fd not in handles:
                original(fd)
                return
            self._meet("os.fsync", handles[fd], lambda: original(fd))

        return sync

    @patch(
        "os:write", "os:pwrite", why="a write that fails on rank 0 raises on all where they meet", hot=True
    )
    def write_on(self, original: Callable[..., int]) -> Callable[..., int]:
        """Nothing in a trial."""
        return self._guarded(original, lambda data: memoryview(data).nbytes)

    @patch(
        "os:writev", "os:pwritev", why="a write that fails on rank 0 raises on all where they meet", hot=True
    )
    def write_parts_on(self, original: Callable[..., int]) -> Callable[..., int]:
        """Nothing in a trial."""

        def size(parts: Sequence[Any]) -> int:
            return sum(memoryview(part).nbytes for part in parts)

        return self._guarded(original, size)

    def _guarded(self, original: Callable[..., int], size: Callable[[Any], int]) -> Callable[..., int]:
        handles = self.handles

        @stands_for(original)
        def write(fd: int, data: Any, *args: Any, **kwargs: Any) -> int:
            if fd not in handles:
                return original(fd, data, *args, **kwargs)
            if self.effects.mode() is not Mode.TRIAL:
                try:
                    if original.__name__ == "write":
                        return whole(lambda part: original(fd, part), data)
                    return original(fd, data, *args, **kwargs)
                except OSError as error:
                    self.opened.failed(handles[fd], error)
            return size(data)

        return write

    def _open(
        self,
        what: Mode,
        plain: Callable[[], int],
        path: Any,
        folder: int | None,
        flags: int,
        private: Callable[[str], int],
    ) -> int:
        effects, agreed = self.effects, what is Mode.AGREED
        if effects.rank == 0:
            number = effects.change("os.open", plain) if agreed else plain()
            with effects.own():
                self.handles[number] = Handle(os.path.abspath(_whole(path, folder)), agreed)
            return number
        with effects.own():
            keep = not flags & os.O_TRUNC
            prepared = Outcome.of(lambda: self.opened.prepared(_whole(path, folder), keep))
        if agreed:
            effects.change("os.open", plain)
        with effects.own():
            key, at = prepared.unwrap()
            number = private(at)
            effects.scratch.lay(key, at)
        self.handles[number] = Handle(key, agreed)
        return number

    def _found(self, path: Any, folder: int | None) -> Any:
        """Where this rank reads what it wrote itself."""
        with self.effects.own():
            return self.effects.scratch.find(_whole(path, folder)) or path

    def _meet(self, what: str, handle: Handle, act: Callable[[], None]) -> None:
        mode = self.effects.mode()
        if mode is Mode.AGREED and handle.agreed:
            self.opened.meet(what, handle, act)
            return
        with self.effects.own():
            act()
        if mode is Mode.ALONE:
            self.opened.settle(handle)


def _whole(path: Any, folder: int | None) -> str:
    """The path, from an open folder on."""
    text = os.fsdecode(path)
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text) if folder is not None else text
