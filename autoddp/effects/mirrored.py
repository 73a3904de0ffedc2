"""Files that a package's object holds open: rank 0's is the user's, the others' are on scratch."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from autoddp.effects import paths
from autoddp.effects.engine import Effects, Mode
from autoddp.effects.mirrored_io import OpenDescriptor
from autoddp.effects.open_files import OpenFiles
from autoddp.effects.write_calls import path_of
from autoddp.patching import Call


@dataclass(frozen=True)
class FileHolder:
    """A class, or a function, whose object holds the file that an argument names.

    Attributes:
        target: The place where it is found, as "module:Dotted.path".
        argument: The argument that names the file.
        mode: The mode that the file is opened in unless the argument `mode` says.
        ends: The methods after which the file is complete.
    """

    target: str
    argument: str
    mode: str
    ends: tuple[str, ...] = ()


CLASSES = (
    FileHolder("h5py:File", "name", "r", ("flush", "close")),
    FileHolder("pandas:HDFStore", "path", "a", ("flush", "close")),
    FileHolder("pyarrow.parquet:ParquetWriter", "where", "w", ("close",)),
    FileHolder("soundfile:SoundFile", "file", "r", ("flush", "close")),
    FileHolder("torch.package:PackageExporter", "f", "w", ("close",)),
)
MAPS = (
    FileHolder("numpy:memmap.__new__", "filename", "r+"),
    FileHolder("numpy.lib.format:open_memmap", "filename", "r+"),
)
BESIDE = ("-wal", "-journal")  # a database, and what SQLite has yet to write into it
MAKERS = {f"{row.target}.__init__": row for row in CLASSES} | {row.target: row for row in MAPS}
ENDS = tuple(f"{row.target}.{end}" for row in CLASSES for end in row.ends)


class LibraryFiles:
    """The opener of such files for all ranks, which meet when one is flushed or closed."""

    def __init__(self, effects: Effects) -> None:
        self._effects, self._opened = effects, OpenFiles(effects)
        self._handles: dict[int, tuple[Any, OpenDescriptor]] = {}
        self._connections: Counter[str] = Counter()  # open ones, by the database's path

    def open(self, call: Call, row: FileHolder, site: str, holder: Any = None) -> Any:
        """Make the call that opens: `holder`'s constructor, or a function that returns a holder."""
        effects, path = self._effects, path_of(call.named.get(row.argument))
        what = effects.touch(path)
        if path is None or what is Mode.PASS_THROUGH:
            return call.plain()
        mode = str(call.named.get("mode", row.mode))

        def at(where: str) -> Any:
            with effects.context.internal():
                return call.changed(**{row.argument: where, **_without_x(call, mode)})

        if not {"w", "a", "x", "+"} & set(mode):
            with effects.context.internal():
                return at(effects.found(path)) if effects.rank else call.plain()
        keep = not {"w", "x"} & set(mode)
        handle = OpenDescriptor(os.path.abspath(path), what is Mode.SYNCED)
        handle.writers = effects.writers(path, handle.agreed)
        made = self._make(site, path, call.plain, at, handle, keep)
        if holder is not None:
            self._handles[id(holder)] = weakref.ref(holder), handle
        return made

    def end(self, call: Call, site: str, holder: Any) -> Any:
        """Make the call (a flush or a close) after which the file is complete for all ranks."""
        there, handle = self._handles.get(id(holder), (lambda: None, None))
        if handle is None or there() is not holder or not self._effects.context.in_job():
            return call.plain()
        if site.endswith("close"):
            del self._handles[id(holder)]
        if self._effects.mode() is Mode.SYNCED and handle.agreed:
            return self._opened.meet(site, handle, call.plain)
        with self._effects.context.internal():
            return call.plain()

    def connect(self, connect: Callable[..., Any], named: dict[str, Any]) -> Any:
        """Connect to an SQLite database; the others connect to copies made before rank 0 does."""
        effects, given = self._effects, named.get("database")
        path, query = _database(given, named.get("uri", False))
        what = effects.touch(path)
        if path is None or what is Mode.PASS_THROUGH:
            return connect(**named)

        def at(where: str) -> Any:
            name = f"file:{quote(where)}{query}" if query is not None else where
            with effects.context.internal():
                return connect(**{**named, "database": name})

        if "mode=ro" in (query or ""):
            with effects.context.internal():
                return at(effects.found(path)) if effects.rank else connect(**named)
        handle = OpenDescriptor(os.path.realpath(path), what is Mode.SYNCED)
        handle.writers = effects.writers(path, handle.agreed)
        named["factory"] = self._closing(named.get("factory"), handle)
        return self._make("sqlite3.connect", path, lambda: connect(**named), at, handle, keep=True)

    def _closing(self, factory: Any, handle: OpenDescriptor) -> Any:
        """Return a class of connections that bring ranks together when they are closed."""
        import sqlite3  # not every Python has it

        held, kind, path = self, factory or sqlite3.Connection, handle.path
        if not isinstance(kind, type):
            return kind

        class Connection(kind):  # type: ignore[misc, valid-type]
            gone = True

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                held._connections[path] += 1
                self.gone = False

            def close(self) -> None:
                held._close(self, super().close, handle)

            def __del__(self) -> None:
                held._leave(self, path)

        Connection.__name__, Connection.__qualname__ = kind.__name__, kind.__qualname__
        Connection.__module__ = kind.__module__
        return Connection

    def _close(self, connection: Any, close: Callable[[], None], handle: OpenDescriptor) -> None:
        """Close a connection; what it works on stays while another to its database is open."""
        effects, first = self._effects, not connection.gone
        self._leave(connection, handle.path)
        if not (first and handle.agreed and effects.mode() is Mode.SYNCED):
            close()
        elif self._connections[handle.path]:
            if effects.rank:
                close()
            effects.ask_rank0("sqlite3.close", close)
        else:
            self._opened.meet("sqlite3.close", handle, close)

    def _leave(self, connection: Any, path: str) -> None:
        if not connection.gone:
            connection.gone = True
            self._connections[path] -= 1

    def _make(
        self,
        site: str,
        path: str,
        act: Callable[[], Any],
        at: Callable[[str], Any],
        handle: OpenDescriptor,
        keep: bool,
    ) -> Any:
        """Open the user's file on rank 0 when all ranks are here, on others a copy made before."""
        effects, agreed, writers = self._effects, handle.agreed, handle.writers
        if effects.rank in writers.ranks:
            if agreed:
                return effects.do_on_rank0(site, act, lambda made: None, writers)
            with effects.context.internal():
                return act()
        if agreed:
            return self._opened.follow(site, act, lambda: self._prepared(path, keep), at, writers)
        real, copy = self._prepared(path, keep)
        with effects.context.internal():
            return at(self._opened.placed(real, copy))

    def _prepared(self, path: str, keep: bool) -> tuple[str, str]:
        """Return the file's name and its copy, with what a database keeps in files beside it."""
        effects = self._effects
        shared = effects.overlay.find(path).own  # with another connection of this rank's
        real, copy = self._opened.prepared(path, keep)
        for more in () if shared or not keep else BESIDE:
            there = effects.found(real + more)
            if paths.is_file(there):
                paths.copy(there, copy + more)
        return real, copy


def _without_x(call: Call, mode: str) -> dict[str, str]:
    """Return the mode without "x" (h5py: "w-"): a copy may exist where rank 0's file must not."""
    if "mode" not in call.named or not ("x" in mode or mode == "w-"):
        return {}
    return {"mode": mode.replace("x", "w").replace("-", "")}


def _database(given: Any, uri: Any) -> tuple[str | None, str | None]:
    """Return the path of a database, None if not on the disk, and what a URI asks for beside it."""
    if not isinstance(given, (str, bytes, os.PathLike)):
        return None, None
    path, query = os.fsdecode(given), None
    if uri and path.startswith("file:"):
        path, mark, query = path.removeprefix("file:").partition("?")
        path, query = unquote(path.removeprefix("//")), mark + query
    in_memory = path in ("", ":memory:") or "mode=memory" in (query or "")
    return (None if in_memory else path), query
