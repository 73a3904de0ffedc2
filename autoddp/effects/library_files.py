"""Files that packages hold open (HDF5, SQLite, memory maps): rank 0's, and copies on the others."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from autoddp.effects import paths
from autoddp.effects.engine import Mode
from autoddp.effects.file_layers import Held
from autoddp.effects.open_files import OpenFiles
from autoddp.effects.outward import Outward
from autoddp.effects.write_calls import path_of
from autoddp.patching import Call, patch
from autoddp.report import users_line


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
        self._files = OpenFiles(self.effects)
        self._held: dict[int, tuple[Any, Held]] = {}  # by the holder's number, which may be reused

    @patch(
        *MAKERS,
        why="what it holds open is rank 0's file; others work on copies",
        optional=True,
    )
    def open_once(self, call: Call) -> Any:
        """Open the file on rank 0, and copies on the others, whoever makes the call."""
        row = MAKERS[call.target]
        path = path_of(call.named.get(row.argument))
        mode = str(call.named.get("mode", row.mode))
        holder = call.instance if call.target.endswith("__init__") else None

        def at(where: str) -> Any:
            # without "x" (h5py: "w-"): a copy may exist where rank 0's file must not
            new = {"mode": mode.replace("x", "w").replace("-", "")} if "mode" in call.named else {}
            return call.changed(**{row.argument: where, **new})

        return self._open(call.plain, at, path, mode, _site(call.target), holder)

    @patch(
        *ENDS,
        why="what was written is complete for every rank after it",
        optional=True,
    )
    def end_together(self, call: Call) -> Any:
        """Flush or close the file, on all ranks together if they have opened it together."""
        number = id(call.instance)
        there, held = self._held.get(number, (lambda: None, None))
        if held is None or there() is not call.instance or not self.context.in_job():
            return call.plain()
        if call.name.endswith("close"):
            del self._held[number]
        if self.effects.mode() is Mode.SYNCED and held.agreed:
            return self._files.meet(_site(call.target), held, call.plain)
        with self.context.internal():
            return call.plain()

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
        named = {**dict(zip(CONNECT, call.args, strict=False)), **call.kwargs}
        path, query = _database(named.get("database"), named.get("uri", False))

        def at(where: str) -> Any:
            for more in BESIDE:
                there = os.path.abspath(path or "") + more
                if where != path and paths.is_file(there) and not paths.is_file(where + more):
                    paths.copy(there, where + more)
            name = f"file:{quote(where)}{query}" if query is not None else where
            return call.wrapped(**{**named, "database": name})

        mode = "r" if "mode=ro" in (query or "") else "a"
        if path is not None and self.effects.touch(path) is Mode.SYNCED:
            self._refresh(path)
        return self._open(lambda: call.wrapped(**named), at, path, mode, "sqlite3.connect")

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

    def _refresh(self, path: str) -> None:
        """Have this rank find what rank 0's closed connections have written to a database."""
        self.effects.ask_rank0("sqlite3.connect", lambda: None)
        with self.context.internal():
            if self.effects.found(path) not in paths.still_open():
                for more in ("", *BESIDE):
                    self.effects.overlay.drop(path + more)

    def _open(
        self,
        act: Callable[[], Any],
        at: Callable[[str], Any],
        path: str | None,
        mode: str,
        site: str,
        holder: Any = None,
    ) -> Any:
        """Open rank 0's file by `act` when all ranks are here, on others a copy made before."""
        effects, what = self.effects, self.effects.touch(path)
        if path is None or what is Mode.PASS_THROUGH:
            return act()
        if {"w", "a", "x", "+"}.isdisjoint(mode):
            with self.context.internal():
                return at(effects.found(path)) if self.rank else act()
        agreed = what is Mode.SYNCED
        held = Held(os.path.abspath(path), agreed, effects.writers(path, agreed))
        if self.rank not in held.writers.ranks:
            made = self._files.apart(site, held, path, set(mode) - {"r"}, act, at)
        elif agreed:
            made = effects.do_on_rank0(site, act, lambda _: None, held.writers)
        else:
            with self.context.internal():
                made = act()
        if holder is not None:
            self._held[id(holder)] = weakref.ref(holder), held
        return made


def _site(target: str) -> str:
    return target.replace(":", ".").removesuffix(".__init__").removesuffix(".__new__")


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
