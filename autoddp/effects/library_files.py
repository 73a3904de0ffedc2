"""Files that packages hold open (HDF5, SQLite, memory maps): rank 0's, and copies on the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from autoddp.effects import paths
from autoddp.effects.engine import Mode
from autoddp.effects.open_files import open_once
from autoddp.effects.outward import Outward
from autoddp.effects.write_calls import WriteCall, path_of
from autoddp.effects.writers import HOLDERS
from autoddp.patching import Call, patch
from autoddp.report import users_line

BESIDE = ("-wal", "-journal")  # a database, and what SQLite has yet to write into it
BY_URI = "every rank opens the database that a URI names; sqlite3.connect opens a path once"
# The names of the arguments of `sqlite3.connect`, which is written in C and has no signature.
CONNECT = (
    *("database", "timeout", "detect_types", "isolation_level", "check_same_thread", "factory"),
    *("cached_statements", "uri"),
)


class Holders(Outward):
    """The feature that opens libraries' files once; copies go when rank 0 has closed the file."""

    name: ClassVar[str] = "holders"
    without: ClassVar[str] = "every rank writes what it holds open as HDF5, SQLite or a memory map"

    @patch(
        *HOLDERS,
        why="what it holds open is rank 0's file; others work on copies",
        optional=True,
    )
    def open_once(self, call: Call) -> Any:
        """Open the file on rank 0, and copies on the others, whoever makes the call."""
        writing = WriteCall(call, HOLDERS[call.target])
        return self._open(call.plain, writing.to, writing.path, writing.mode, writing.site)

    @patch(
        "sqlite3:connect",
        "sqlite3.dbapi2:connect",
        why="one connection writes: rank 0's; others work on copies",
        optional=True,
    )
    def connect_once(self, call: Call) -> Any:
        """Connect to rank 0's database or a copy; a database in memory is each rank's own."""
        if len(call.args) > len(CONNECT):
            return call.plain()  # which raises
        named = {**dict(zip(CONNECT, call.args, strict=False)), **call.kwargs}
        path = path_of(named.get("database")) or ""
        if path.startswith("file:") and named.get("uri"):
            if "memory" not in path and self.effects.touch() is Mode.SYNCED:
                if "mode=ro" not in path:
                    self.run.report.doubt("holders", users_line(), BY_URI)
                self.effects.ask_rank0("sqlite3.connect", lambda: None)  # its writes are there
            with self.context.internal():  # the witness has nothing to add
                return call.plain()

        def at(where: str) -> Any:
            for more in BESIDE:
                there = os.path.abspath(path) + more
                if where != path and paths.is_file(there) and not paths.is_file(where + more):
                    with suppress(FileNotFoundError):  # rank 0 has just ended its transaction
                        paths.copy(there, where + more)
            return call.wrapped(**{**named, "database": where})

        if path == ":memory:":
            return call.plain()
        if path and self.effects.touch(path) is Mode.SYNCED:
            self._refresh(path)
        return self._open(call.plain, at, path, "a", "sqlite3.connect")

    def _refresh(self, path: str) -> None:
        """Have this rank find what rank 0's closed connections have written to a database."""
        self.effects.ask_rank0("sqlite3.connect", lambda: None)
        with self.context.internal():
            if self.effects.overlay.find(path).at not in paths.still_open():
                for more in ("", *BESIDE):
                    self.effects.overlay.drop(path + more)

    def _open(
        self, act: Callable[[], Any], at: Callable[[str], Any], path: str, mode: str, site: str
    ) -> Any:
        """Open rank 0's file by `act` when all ranks are here, on others a copy made before."""
        effects, what = self.effects, self.effects.touch(path)
        if not path or what is Mode.PASS_THROUGH:
            return act()
        letters = set(mode.replace("w-", "x")) - {"r"}  # which is h5py's
        if letters.isdisjoint("wax+"):
            where = effects.where(path)
            with self.context.internal():
                return at(where) if self.rank else act()
        made, _ = open_once(effects, site, what, path, letters, act, at)
        if self.rank and what is Mode.SYNCED:
            with self.context.internal():  # what rank 0 has closed by now is on the disk
                effects.overlay.refresh()
        return made
