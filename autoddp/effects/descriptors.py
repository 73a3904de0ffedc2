"""Files that the script opens by `os.open` are rank 0's, like those that it opens by `open`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.effects import paths
from autoddp.effects.engine import Mode
from autoddp.effects.mirrored_io import OpenDescriptor, whole
from autoddp.effects.open_files import OpenFiles
from autoddp.effects.outward import Outward
from autoddp.effects.overlay import error, named
from autoddp.effects.rows import EffectRow, do
from autoddp.patching import patch, stands_for

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Not on scratch: there the file exists already, and is this rank's own.
NOT_THERE = os.O_EXCL | os.O_NOFOLLOW | getattr(os, "O_DIRECT", 0)
NAMELESS = getattr(os, "O_TMPFILE", 0)


class Descriptors(Outward):
    """Descriptors of files: rank 0 writes; others get one on scratch, and learn how it went."""

    name: ClassVar[str] = "descriptors"
    without: ClassVar[str] = "every rank writes what it opens by os.open"
    libraries: ClassVar[bool] = True
    rows: ClassVar[tuple[EffectRow, ...]] = (
        do(
            "fcntl:flock",
            "fcntl:lockf",
            why="a lock of the script's is held once, on rank 0's file: others have files of "
            "their own",
        ),
    )

    def setup(self, undo: ExitStack) -> None:
        """Take up the table of open descriptors, and clear it at the end."""
        super().setup(undo)
        self.open_files, self.handles = OpenFiles(self.effects), self.effects.handles
        undo.callback(self.handles.clear)

    @patch(
        "os:open",
        why="what the script opens to write is rank 0's file; others read what they wrote",
        hot=True,
    )
    def open_once(self, original: Callable[..., int]) -> Callable[..., int]:
        """Make an `os.open` that writes rank 0's file; paths may be relative to an open folder."""
        first = self.rank == 0

        @stands_for(original)
        def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            def plain() -> int:
                return original(path, flags, mode, dir_fd=dir_fd)

            writes = flags & WRITES and (not NAMELESS or flags & NAMELESS != NAMELESS)
            if (first and not writes) or not isinstance(path, (str, bytes, os.PathLike)):
                return plain()
            if not writes:
                at = self._found(path, dir_fd, flags)
                return (
                    plain() if at is path else int(named(lambda: original(at, flags, mode), path))
                )
            what = self.effects.touch(paths.whole(path, dir_fd))
            if what is Mode.PASS_THROUGH:
                return plain()
            private = flags & ~NOT_THERE | os.O_CREAT
            return self._open(
                what, plain, path, dir_fd, flags, lambda at: original(at, private, mode | 0o600)
            )

        return open

    @patch(
        "os:close",
        why="ranks meet where a descriptor of one file is closed, and learn how it went",
        hot=True,
    )
    def close_once(self, original: Callable[[int], None]) -> Callable[[int], None]:
        """Make an `os.close` after which the file is complete for all ranks."""
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
        """Make an `os.fsync` that tells all ranks how it went, like a file's `flush()`."""
        handles = self.handles

        @stands_for(original)
        def sync(fd: Any) -> None:
            if type(fd) is not int or fd not in handles:
                original(fd)
                return
            self._meet("os.fsync", handles[fd], lambda: original(fd))

        return sync

    @patch(
        "os:write",
        "os:pwrite",
        why="a write that fails on rank 0 raises on all where they meet",
        hot=True,
    )
    def write_on(self, original: Callable[..., int]) -> Callable[..., int]:
        """Make an `os.write` that notes rank 0's failures."""
        return self._guarded(original, lambda data: memoryview(data).nbytes)

    @patch(
        "os:writev",
        "os:pwritev",
        why="a write that fails on rank 0 raises on all where they meet",
        hot=True,
    )
    def write_parts_on(self, original: Callable[..., int]) -> Callable[..., int]:
        """Make an `os.writev` that notes rank 0's failures."""

        def size(parts: Sequence[Any]) -> int:
            return sum(memoryview(part).nbytes for part in parts)

        return self._guarded(original, size)

    def _guarded(
        self, original: Callable[..., int], size: Callable[[Any], int]
    ) -> Callable[..., int]:
        handles = self.handles

        @stands_for(original)
        def write(fd: int, data: Any, *args: Any, **kwargs: Any) -> int:
            if fd not in handles:
                return original(fd, data, *args, **kwargs)
            try:
                if original.__name__ == "write":
                    return whole(lambda part: original(fd, part), data)
                return original(fd, data, *args, **kwargs)
            except OSError as error:
                self.open_files.failed(handles[fd], error)
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
        effects, agreed = self.effects, what is Mode.SYNCED
        given = paths.whole(path, folder)
        writers = effects.writers(given, agreed)
        if effects.rank in writers.ranks:
            number = effects.do_on_rank0("os.open", plain, None, writers) if agreed else plain()
            with effects.context.internal():
                at = os.path.abspath(given)
                self.handles[number] = OpenDescriptor(at, agreed, writers=writers)
            return number
        if agreed:
            keep = not flags & os.O_TRUNC
            number = self.open_files.follow(
                "os.open", plain, lambda: self.open_files.prepared(given, keep), private, writers
            )
        else:
            with effects.overlay.locked(), effects.context.internal():
                number = private(self._alone(path, given, flags))
        self.handles[number] = OpenDescriptor(os.path.abspath(given), agreed, writers=writers)
        return int(number)

    def _alone(self, path: Any, given: Any, flags: int) -> str:
        """Return where a rank above 0 writes a file that no other rank waits for."""

        def find() -> str:
            found = self.effects.overlay.find(given, follow=False)
            if flags & os.O_NOFOLLOW and found.there and paths.link(found.at) is not None:
                raise error(errno.ELOOP, path)
            return self.open_files.alone(given, _letters(flags))

        return str(named(find, path))

    def _found(self, path: Any, folder: int | None, flags: int) -> Any:
        """Return where this rank finds the file to read: `path` itself if that is the place."""
        if not self.effects.reads():
            return path
        whole = paths.whole(path, folder)
        at = self.effects.where(whole, not flags & os.O_NOFOLLOW)
        return path if at is whole else at

    def _meet(self, what: str, handle: OpenDescriptor, act: Callable[[], None]) -> None:
        mode = self.effects.mode()
        if mode is Mode.SYNCED and handle.agreed:
            self.open_files.meet(what, handle, act)
            return
        with self.effects.context.internal():
            act()
        if mode is Mode.UNSYNCED:
            self.open_files.settle(handle)


def _letters(flags: int) -> set[str]:
    """Return the letters that `open` has in its mode for these flags."""
    letters = {"w"} if flags & os.O_TRUNC else {"a"} if flags & os.O_APPEND else {"a", "+"}
    if not flags & os.O_CREAT:
        letters |= {"r"}  # the file must be there
    return letters | ({"x"} if flags & os.O_EXCL and flags & os.O_CREAT else set())
