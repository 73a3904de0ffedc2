"""Files that libraries keep open (HDF5, SQLite, memory maps): rank 0's file, private copies."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from autoddp.effects import paths
from autoddp.effects.effect_feature import EffectFeature
from autoddp.effects.open_files import open_once
from autoddp.effects.ownership import whose
from autoddp.effects.who_acts import Mode
from autoddp.effects.write_calls import WriteCall
from autoddp.effects.writers import HOLDERS
from autoddp.patching import Call, patch

COMPANIONS = ("-wal", "-journal")  # files of changes that SQLite has yet to write


class Holders(EffectFeature):
    """The feature for files that libraries keep open; copies are removed after rank 0's close."""

    name: ClassVar[str] = "holders"
    without: ClassVar[str] = "every rank writes to HDF5 files, SQLite databases and memory maps"

    @patch(
        *HOLDERS,
        why="rank 0 opens the file; other ranks work on private copies",
        optional=True,
    )
    def open_once(self, call: Call) -> Any:
        """Open the file on rank 0 once all ranks have made their copies, which they then open."""
        writing = WriteCall(call, HOLDERS[call.target])
        path, query = writing.path, ""
        name: Callable[[str], str] = str
        if call.kwargs.get("uri") and path.startswith("file:"):  # SQLite's
            path, query, name = _parts(path)
        mode = self.effects.mode(path, by=whose)
        if path in ("", ":memory:") or "mode=memory" in query or mode is Mode.PASS_THROUGH:
            with self.context.internal():  # not a write to report
                return call.plain()
        letters = set(writing.mode.replace("w-", "x")) - {"r"}  # "w-" is h5py's
        reads = letters.isdisjoint("wax+")
        if mode is Mode.SYNCED and not reads:
            self._drop(path, writing.site)
        if reads or "mode=ro" in query:
            at = self.effects.where(path)
            with self.context.internal():
                return writing.to(name(at)) if self.rank else call.plain()

        def open_copy(at: str) -> Any:
            for suffix in COMPANIONS:
                original = os.path.abspath(path) + suffix
                if paths.is_file(original) and not paths.is_file(at + suffix):
                    with suppress(FileNotFoundError):  # rank 0 has just ended its transaction
                        paths.copy(original, at + suffix)
            return writing.to(name(at))

        file, _ = open_once(self.effects, writing.site, mode, path, letters, call.plain, open_copy)
        if self.rank and mode is Mode.SYNCED:
            with self.context.internal():  # drop copies of files that rank 0 has closed
                self.effects.overlay.refresh()
        return file

    def _drop(self, path: str, site: str) -> None:
        """Drop this rank's copy, if it is closed, once rank 0 has made the call."""
        self.effects.ask_rank0(site, lambda: None)
        with self.context.internal():
            if self.effects.overlay.find(path).at not in paths.still_open():
                for suffix in ("", *COMPANIONS):
                    self.effects.overlay.drop(path + suffix)


def _parts(uri: str) -> tuple[str, str, Callable[[str], str]]:
    """Return the path and the query of a URI, and a function that makes it for another path."""
    path, mark, query = uri.removeprefix("file:").partition("?")
    return unquote(path), query, lambda at: f"file:{quote(at)}{mark}{query}"
