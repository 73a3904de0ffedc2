"""Files that packages hold open (HDF5, SQLite, memory maps): rank 0's, and copies on the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.effects.engine import Call, Outward
from autoddp.effects.mirrored import ENDS, MAKERS, LibraryFiles
from autoddp.patching import patch

# The names of the arguments of `sqlite3.connect`, which is written in C and does not tell them.
CONNECT = (
    *("database", "timeout", "detect_types", "isolation_level", "check_same_thread", "factory"),
    *("cached_statements", "uri"),
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
        with_target=True,
    )
    def open_once(
        self, target: str, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any
    ) -> Any:
        """Open the file on rank 0, and copies on the others, whoever makes the call."""
        holder = instance if target.endswith("__init__") else None
        return self.library_files.open(
            Call(wrapped, args, kwargs), MAKERS[target], _site(target), holder
        )

    @patch(
        *ENDS,
        why="what was written is complete for every rank after it",
        optional=True,
        with_target=True,
    )
    def end_together(
        self, target: str, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any
    ) -> Any:
        """Flush or close the file, on all ranks together if they have opened it together."""
        return self.library_files.end(Call(wrapped, args, kwargs), _site(target), instance)

    @patch(
        "sqlite3:connect",
        "sqlite3.dbapi2:connect",
        why="one connection writes: rank 0's; others work on copies",
        optional=True,
    )
    def connect_once(
        self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any
    ) -> Any:
        """Connect to rank 0's database or a copy; a database in memory is each rank's own."""
        if len(args) > len(CONNECT):
            return wrapped(*args, **kwargs)  # this words the error
        return self.library_files.connect(
            wrapped, {**dict(zip(CONNECT, args, strict=False)), **kwargs}
        )


def _site(target: str) -> str:
    return target.replace(":", ".").removesuffix(".__init__").removesuffix(".__new__")
