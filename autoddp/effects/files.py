"""Files are written once, by rank 0; all ranks get the result and read the written file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

from autoddp.effects import paths
from autoddp.effects.effect_feature import EffectFeature, EffectRow, do
from autoddp.effects.open_files import open_file, open_once
from autoddp.effects.overlay import named
from autoddp.effects.ownership import whose
from autoddp.effects.who_acts import Mode
from autoddp.effects.write_calls import WriteCalls
from autoddp.effects.writers import WRITERS
from autoddp.patching import Call, patch, stands_for

LETTERS = frozenset("wax+")
FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Flags that are dropped in the overlay, where the file exists already.
NOT_THERE = os.O_EXCL | os.O_NOFOLLOW | getattr(os, "O_DIRECT", 0)
NAMELESS = getattr(os, "O_TMPFILE", 0)  # a file in this folder, without a name
NAMES = (str, bytes, os.PathLike)
WHY = "rank 0 opens the file to write; other ranks open a private copy, which they read"


class Files(EffectFeature):
    """The feature for files: rank 0 writes, others write to their overlay and get its result."""

    name: ClassVar[str] = "files"
    without: ClassVar[str] = "every rank writes every file"
    libraries: ClassVar[bool] = True
    rows: ClassVar[tuple[EffectRow, ...]] = (
        do(
            ("fcntl:flock", "fcntl:lockf"),
            why="rank 0 locks the file for all ranks: the others have private copies",
        ),
    )

    @patch(*WRITERS, why="rank 0 writes the file, completely or not at all", optional=True)
    def write_once(self, call: Call) -> Any:
        """Write the file on rank 0; others make the call, too, as gathering needs all ranks."""
        return WriteCalls(self.effects).write(call, WRITERS[call.target])

    @patch(
        "builtins:open",
        "io:open",
        "bz2:_builtin_open",
        "tarfile:bltn_open",
        why=WHY,
        optional=True,
        hot=True,
    )
    def open_once(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make an `open` that opens a file in the overlay on ranks above 0."""
        effects, first, idle = self.effects, self.rank == 0, self.effects.overlay.idle

        @stands_for(original)
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            writes = not LETTERS.isdisjoint(mode)
            if not isinstance(file, NAMES) or (not writes and (first or idle())):
                return original(file, mode, *args, **kwargs)
            call = Call(original, (file, mode, *args), kwargs)
            if not writes:
                return self._read(call)
            sync = effects.mode(file, by=whose)
            if sync is Mode.PASS_THROUGH:
                return original(file, mode, *args, **kwargs)
            if call.named.get("opener") is not None:
                return self._by_opener(call, sync)
            return open_file(effects, sync, call)

        return open

    @patch("os:open", why=WHY, hot=True)
    def open_descriptor_once(self, original: Callable[..., int]) -> Callable[..., int]:
        """Make an `os.open` with one outcome; each rank writes to its own descriptor."""

        @stands_for(original)
        def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            def plain() -> int:
                return original(path, flags, mode, dir_fd=dir_fd)

            def private(at: str) -> int:
                if NAMELESS and flags & NAMELESS == NAMELESS:
                    return self._nameless(original, flags, mode)
                return original(at, flags & ~NOT_THERE | os.O_CREAT, mode | 0o600)

            writes = flags & FLAGS
            if (self.rank == 0 and not writes) or not isinstance(path, NAMES) or dir_fd is not None:
                return plain()
            if not writes:
                at = self.effects.where(path, not flags & os.O_NOFOLLOW)
                return int(named(lambda: original(at, flags, mode), path))
            sync, letters = self.effects.mode(path, by=whose), _letters(flags)
            if sync is Mode.PASS_THROUGH:
                return plain()
            opened, _ = open_once(self.effects, "os.open", sync, path, letters, plain, private)
            return int(opened)

        return open

    def _by_opener(self, call: Call, mode: Mode) -> Any:
        """Open a file by the script's `opener`, which calls `os.open`, maybe with another path."""
        context, opener = self.context, call.named["opener"]
        if mode is not Mode.SYNCED:
            return call.plain()

        def opened(*given: Any) -> Any:
            with context.script():
                return opener(*given)

        with context.internal():  # else the path that the opener gets would be reported as written
            return call.changed(opener=opened)

    def _nameless(self, original: Callable[..., int], flags: int, mode: int) -> int:
        """Open a file of this rank that has no name, on any file system."""
        at = self.effects.overlay.new("nameless")
        descriptor = original(at, flags & ~NAMELESS | os.O_CREAT, mode)
        paths.remove(os.path.dirname(at))
        return descriptor

    def _read(self, call: Call) -> Any:
        """Open a file for reading where this rank finds it, under the script's name."""
        file = call.named.get("file", "")
        at = self.effects.where(file) if file else file
        if at is file:
            return call.plain()
        try:
            opened = named(lambda: call.changed(file=at), file)
        except FileNotFoundError:
            if self.effects.where(file) == at:
                raise
            return self._read(call)  # the private copy was just dropped for rank 0's file
        raw = getattr(opened, "buffer", opened)
        getattr(raw, "raw", raw).name = os.fspath(file)
        return opened


def _letters(flags: int) -> set[str]:
    """Return the letters of the mode of `open` that correspond to these flags."""
    letters = {"w"} if flags & os.O_TRUNC else {"a"} if flags & os.O_APPEND else {"a", "+"}
    if not flags & os.O_CREAT:
        letters |= {"r"}  # the file must be there
    return letters | ({"x"} if flags & os.O_EXCL and flags & os.O_CREAT else set())
