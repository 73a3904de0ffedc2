"""Files that packages hold open (HDF5, SQLite, memory maps): rank 0's, and copies on the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from autoddp.effects import paths
from autoddp.effects.engine import Mode
from autoddp.effects.open_files import open_once
from autoddp.effects.outward import Outward
from autoddp.effects.write_calls import WriteCall
from autoddp.effects.writers import HOLDERS
from autoddp.patching import Call, patch

COMPANIONS = ("-wal", "-journal")  # a database, and what SQLite has yet to write into it


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
        """Open rank 0's file when all ranks are here, and copies made before on the others."""
        writing = WriteCall(call, HOLDERS[call.target])
        path, query = writing.path, ""
        name: Callable[[str], str] = str
        if call.kwargs.get("uri") and path.startswith("file:"):  # as SQLite has them
            path, query, name = _parts(path)
        what = self.effects.touch(path)
        if path in ("", ":memory:") or "mode=memory" in query or what is Mode.PASS_THROUGH:
            with self.context.internal():  # the witness has nothing to add
                return call.plain()
        letters = set(writing.mode.replace("w-", "x")) - {"r"}  # which is h5py's
        reads = letters.isdisjoint("wax+")
        if what is Mode.SYNCED and not reads:
            self._drop(path, writing.site)
        if reads or "mode=ro" in query:
            where = self.effects.where(path)
            with self.context.internal():
                return writing.to(name(where)) if self.rank else call.plain()

        def open_copy(at: str) -> Any:
            for more in COMPANIONS:
                there = os.path.abspath(path) + more
                if paths.is_file(there) and not paths.is_file(at + more):
                    with suppress(FileNotFoundError):  # rank 0 has just ended its transaction
                        paths.copy(there, at + more)
            return writing.to(name(at))

        made, _ = open_once(self.effects, writing.site, what, path, letters, call.plain, open_copy)
        if self.rank and what is Mode.SYNCED:
            with self.context.internal():  # what rank 0 has closed by now is on the disk
                self.effects.overlay.refresh()
        return made

    def _drop(self, path: str, site: str) -> None:
        """Drop this rank's copy, if it is closed, once rank 0 has written what it had to."""
        self.effects.ask_rank0(site, lambda: None)
        with self.context.internal():
            if self.effects.overlay.find(path).at not in paths.still_open():
                for more in ("", *COMPANIONS):
                    self.effects.overlay.drop(path + more)


def _parts(uri: str) -> tuple[str, str, Callable[[str], str]]:
    """Return the path in a URI, what stands after it, and a function that puts in another path."""
    path, mark, query = uri.removeprefix("file:").partition("?")
    return unquote(path), query, lambda at: f"file:{quote(at)}{mark}{query}"
