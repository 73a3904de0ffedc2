"""Files that packages hold open (HDF5, SQLite, memory maps): rank 0's, and copies on the others."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.effects.engine import Mode
from autoddp.effects.mirrored import ENDS, MAKERS, LibraryFiles
from autoddp.effects.outward import Outward
from autoddp.patching import Call, patch
from autoddp.report import users_line

# The names of the arguments of `sqlite3.connect`, which is written in C and does not tell them.
CONNECT = (
    *("database", "timeout", "detect_types", "isolation_level", "check_same_thread", "factory"),
    *("cached_statements", "uri"),
)
EACH_WRITES = (
    "lmdb.open: every rank writes what the script puts into this database, so it is there once for "
    "each rank; write it in a script of its own, and open it with readonly=True where it is read"
)


class Holders(Outward):
    """The feature that opens libraries' files once; after `close()` they are complete for all."""

    name: ClassVar[str] = "holders"
    without: ClassVar[str] = "every rank writes what it holds open as HDF5, SQLite or a memory map"

    def setup(self, undo: ExitStack) -> None:
        """Set up with no file held open yet."""
        super().setup(undo)
        self.library_files = LibraryFiles(self.effects)

    @patch(
        *MAKERS,
        why="what it holds open is rank 0's file; others work on copies",
        optional=True,
    )
    def open_once(self, call: Call) -> Any:
        """Open the file on rank 0, and copies on the others, whoever makes the call."""
        holder = call.instance if call.target.endswith("__init__") else None
        return self.library_files.open(call, MAKERS[call.target], _site(call.target), holder)

    @patch(
        *ENDS,
        why="what was written is complete for every rank after it",
        optional=True,
    )
    def end_together(self, call: Call) -> Any:
        """Flush or close the file, on all ranks together if they have opened it together."""
        return self.library_files.end(call, _site(call.target), call.instance)

    @patch(
        "sqlite3:connect",
        "sqlite3.dbapi2:connect",
        why="one connection writes: rank 0's; others work on copies",
        optional=True,
    )
    def connect_once(self, call: Call) -> Any:
        """Connect to rank 0's database or a copy; a database in memory is each rank's own."""
        if len(call.args) > len(CONNECT):
            return call.plain()  # this words the error
        return self.library_files.connect(
            call.wrapped, {**dict(zip(CONNECT, call.args, strict=False)), **call.kwargs}
        )

    @patch(
        "lmdb:open",
        why="a database that every rank opens for writing is written by every rank, which is said",
        optional=True,
    )
    def say_that_each_writes(self, call: Call) -> Any:
        """Open the database; say what will come of it, unless it is opened for reading alone."""
        if self.effects.users() is Mode.SYNCED and not call.kwargs.get("readonly"):
            self.run.report.doubt("holders", users_line(), EACH_WRITES)
        return call.plain()


def _site(target: str) -> str:
    return target.replace(":", ".").removesuffix(".__init__").removesuffix(".__new__")
