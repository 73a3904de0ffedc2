"""Files are written once, by rank 0; every rank learns how it went, and reads what was written."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.effects import paths
from autoddp.effects.engine import Mode
from autoddp.effects.open_files import OpenFiles
from autoddp.effects.outward import Outward
from autoddp.effects.overlay import named
from autoddp.effects.readers import READERS, named_file, read
from autoddp.effects.write_calls import WriteCalls
from autoddp.effects.writers import CHECKPOINT, WRITERS
from autoddp.patching import Call, patch, stands_for

_WRITES = frozenset("wax+")


class Files(Outward):
    """The script's files: rank 0 writes; others go through the motions, and learn how it went."""

    name: ClassVar[str] = "files"
    without: ClassVar[str] = "every rank writes every file"
    libraries: ClassVar[bool] = True

    def setup(self, undo: ExitStack) -> None:
        """Have a trial mute the files that are open before it, as it does those opened in it."""
        super().setup(undo)
        self.open_files, self.written = OpenFiles(self.effects), WriteCalls(self.effects)
        undo.callback(self.open_files.end)
        self.context.muting.append(self.open_files.muted)
        undo.callback(self.context.muting.remove, self.open_files.muted)

    @patch(
        "torch:save",
        "torch.serialization:save",
        why="rank 0 writes the checkpoint, whole or not at all",
    )
    def save_once(self, call: Call) -> Any:
        """Save on rank 0; others pickle into nothing: gathering rows takes all ranks."""
        return self.written.write(call, CHECKPOINT)

    @patch(*WRITERS, why="rank 0 writes the file, whole or not at all", optional=True)
    def write_once(self, call: Call) -> Any:
        """Write the file on rank 0; others write it, too, to their scratch."""
        return self.written.write(call, WRITERS[call.target])

    @patch(
        "builtins:open",
        "io:open",
        "bz2:_builtin_open",
        "tarfile:bltn_open",
        why="what the script opens to write is rank 0's file; others read what they wrote",
        optional=True,
        hot=True,
    )
    def open_once(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make an `open` by which other ranks get a file on scratch that holds what they write."""
        effects, first, idle = self.effects, self.rank == 0, self.effects.overlay.idle

        @stands_for(original)
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            writes = not _WRITES.isdisjoint(mode)
            if type(file) is int and file in effects.handles:
                return self.open_files.adopt(Call(original, (file, mode, *args), kwargs))
            if not isinstance(file, (str, bytes, os.PathLike)) or (
                not writes and (first or idle())
            ):
                return original(file, mode, *args, **kwargs)
            call = Call(original, (file, mode, *args), kwargs)
            if not writes:
                return self._read(call)
            what = effects.touch(file)
            if what is Mode.PASS_THROUGH:
                return original(file, mode, *args, **kwargs)
            if call.named.get("opener") is not None:
                opened = original(file, mode, *args, **kwargs)  # its `os.open` is agreed on
                effects.handles.pop(opened.fileno(), None)  # it is closed by C, unseen
                return opened
            return self.open_files.open(what, call)

        return open

    @patch(*READERS, why="what a library has written is read where this rank has it", optional=True)
    def read_own(self, call: Call) -> Any:
        """Have a library, which opens by itself, read a file where this rank has it."""
        if not named_file(call) or not self.effects.reads():
            return call.plain()
        return read(call, self.effects.where)

    @patch(
        "importlib:import_module",
        "importlib:invalidate_caches",
        "importlib.util:spec_from_file_location",
        why="a module that the script has written is there for all: the import looks at the disk",
    )
    def import_when_written(self, call: Call) -> Any:
        """Wait for rank 0, which may still write what the script has let go of without a close."""
        if self.effects.touch() is Mode.SYNCED:
            self.effects.ask_rank0(call.name, lambda: None)
        return call.plain()

    @patch(
        "logging.handlers:RotatingFileHandler.shouldRollover",
        "logging.handlers:TimedRotatingFileHandler.shouldRollover",
        why="a log is renamed by the clock, or by a size that the time in it changes: rank 0's",
    )
    def roll_over_alike(self, call: Call) -> Any:
        """Return rank 0's answer; each rank looks at its own file, and at nobody's clock."""
        handler = call.instance
        if self.effects.touch() is not Mode.SYNCED:
            return call.plain()
        if handler.stream is None and hasattr(handler, "maxBytes"):
            handler.stream = handler._open()  # as it would do below, where it were each rank's own
        with self.effects.context.internal():
            now = call.plain()
        return self.effects.ask_rank0("shouldRollover", lambda: now)

    @patch(
        "logging.handlers:WatchedFileHandler.reopenIfNeeded",
        why="whether a log was moved, rank 0 sees: others write to a file of their own",
    )
    def open_again_alike(self, call: Call) -> Any:
        """Open the log again on all ranks if rank 0's was moved; look only where ranks meet."""
        handler = call.instance
        bottom = getattr(handler.stream, "bottom", None)
        if not getattr(bottom, "agreed", False):
            return call.plain()
        if self.effects.touch() is not Mode.SYNCED:
            return None

        def moved() -> bool:
            there = paths.seen(handler.baseFilename)
            return there is None or (there.st_dev, there.st_ino) != (
                handler.dev,
                handler.ino,
            )

        if self.effects.ask_rank0("reopenIfNeeded", moved):
            with self.effects.context.internal():
                self.effects.overlay.drop(paths.real(handler.baseFilename, True))
            handler.ino = -1
            call.plain()
        return None

    def _read(self, call: Call) -> Any:
        """Open a file for reading where this rank finds it, under the name that was given."""
        file = call.named.get("file")
        at = file if file is None else self.effects.where(file)
        if at is file:
            return call.plain()
        try:
            opened = named(lambda: call.changed(file=at), file)
        except FileNotFoundError:
            if self.effects.where(file) == at:
                raise
            return self._read(call)  # another process of this rank's has just let it go
        raw = getattr(opened, "buffer", opened)
        getattr(raw, "raw", raw).name = at if file is None else os.fspath(file)
        return opened
