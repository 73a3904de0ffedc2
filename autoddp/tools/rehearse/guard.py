"""Files outside of the private folder are kept as they were before a run first touches them."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from autoddp.effects import paths
from autoddp.effects.caches import HOLD, NAMED, NOBODYS, PARTS
from autoddp.effects.witness import WRITES
from autoddp.effects.writers import CHECKPOINT, WRITERS, Writer
from autoddp.patching import Call, Feature, patch
from autoddp.tools.rehearse.backup import JOURNAL, copy

# Python's own audit events, and where among their arguments the names are of what changes. Each has
# beside it the place of the open folder that it is relative to, if there can be one. Where a new
# symbolic link points is only a text; a hard link's source changes with what is written by it.
EVENTS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "open": ((0, None),),
    "os.truncate": ((0, None),),
    "sqlite3.connect": ((0, None),),
    "tempfile.mkdtemp": ((0, None),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "shutil.rmtree": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.chmod": ((0, 2),),
    "os.utime": ((0, 3),),
    "os.symlink": ((1, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
}
NO_FOLDER = -1  # what events have where no open folder is given
# These events change a link's target, all others the link itself.
FOLLOW = frozenset(["open", "sqlite3.connect", "os.truncate", "os.chmod", "os.utime"])


class OutsideGuard:
    """A watch on what this process, or one forked from it, is about to change outside of `free`.

    Args:
        free: The folder in which a run may do what it likes.
        kept: The folder for copies of what was there, with a journal of them.
    """

    def __init__(self, free: Path, kept: Path) -> None:
        home = os.path.expanduser("~") + "/"
        caches = [
            os.path.realpath(os.environ[name]) + "/"
            for name in (*NAMED, *HOLD)
            if os.environ.get(name)
        ]
        self.kept, self.free = kept, (f"{free}/", *NOBODYS, home + ".", *caches)
        self.known: set[str] = set()
        self.busy = threading.local()

    def setup(self, undo: ExitStack) -> None:
        """Add an audit hook, which stays for good, but sees nothing once `undo` is closed."""
        active = [self.look]
        undo.callback(active.clear)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if active and event in EVENTS:
                active[0](event, args)

        sys.addaudithook(hook)

    def look(self, event: str, args: tuple[Any, ...]) -> None:
        """Keep what an audit event is about to change, which opening a file to read does not."""
        if event == "open" and not (isinstance(args[2], int) and args[2] & WRITES):
            return
        for at, beside in EVENTS[event]:
            if isinstance(args[at], (str, bytes, os.PathLike)):
                folder = args[beside] if beside is not None and len(args) > beside else None
                self.touch(
                    paths.whole(args[at], None if folder == NO_FOLDER else folder), event in FOLLOW
                )

    def touch(self, name: Any, follow: bool = True) -> None:
        """Keep what is at `name`, unless it lies in a free folder or is known already."""
        if getattr(self.busy, "now", False):
            return
        self.busy.now = True
        try:
            path = os.path.abspath(os.fsdecode(name))
            folder, last = os.path.split(path)
            path = (
                os.path.realpath(path) if follow else os.path.join(os.path.realpath(folder), last)
            )
            if not path.startswith(self.free) and not any(part in path for part in PARTS):
                self._note(path)
        finally:
            self.busy.now = False

    def _note(self, path: str) -> None:
        if self._is_known(path):
            return
        with open(self.kept / JOURNAL, "a+") as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)  # several ranks and workers write to the journal
            journal.seek(0)
            self.known |= {json.loads(line)["path"] for line in journal}
            if not self._is_known(path):
                there = os.path.lexists(path)
                kept = str(self.kept / str(len(self.known))) if there else None
                if kept is not None:
                    copy(path, kept)
                print(json.dumps({"path": path, "kept": kept}), file=journal, flush=True)
                self.known.add(path)

    def _is_known(self, path: str) -> bool:
        """Return whether the path, or a folder above it, was kept or was not there."""
        while path not in self.known:
            path, below = os.path.dirname(path), path
            if path == below:
                return False
        return True


class Backups(Feature):
    """The guard's sight, in one process, of what libraries write by C code: the table of writers.

    Ranks need none of it: rank 0 writes under another name, and Python renames.
    """

    name: ClassVar[str] = "backups"

    def __init__(self, guard: OutsideGuard) -> None:
        super().__init__()
        self.guard = guard

    @patch(
        "torch:save",
        "torch.serialization:save",
        *WRITERS,
        why="see files",
        optional=True,
    )
    def see(self, call: Call) -> Any:
        """Keep what is at the path that a library is about to write, then let it write."""
        path = argument(WRITERS.get(call.target, CHECKPOINT), call)
        if isinstance(path, (str, bytes, os.PathLike)):
            self.guard.touch(path)
        return call.plain()


def argument(row: Writer, call: Call) -> Any:
    """Return the argument of a call that names the file, None if it cannot be told."""
    if row.argument in call.kwargs:
        return call.kwargs[row.argument]
    if row.position is not None:
        return call.args[row.position] if len(call.args) > row.position else None
    return call.named.get(row.argument)  # a wrong call names none: the function says so itself
