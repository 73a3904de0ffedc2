"""Files that the script holds open for writing: rank 0's for real, the others' on scratch."""

from __future__ import annotations

import errno
import logging
import sys
import weakref
from collections.abc import Callable
from typing import Any

from autoddp.comm.outcome import Outcome
from autoddp.effects import overlay, paths
from autoddp.effects.engine import Effects, Mode
from autoddp.effects.mirrored_io import MirroredFileIO, OpenDescriptor, Writers, rebuilt
from autoddp.errors import ScratchFailed
from autoddp.patching import Call


class OpenFiles:
    """The opener of such files, and the keeper that brings ranks together at a flush or a close.

    After a file was closed by the script, it is complete for every rank and whatever reads it; what
    failed on rank 0 was raised by then, on all.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._files: weakref.WeakSet[Any] = weakref.WeakSet()

    def open(self, mode: Mode, call: Call) -> Any:
        """Make a call of `open` that writes, and return this rank's file."""
        effects, agreed, act = self._effects, mode is Mode.SYNCED, call.plain
        if not (agreed or call.named):
            return act()  # words what is wrong with its arguments
        writers = effects.writers(call.named.get("file", ""), agreed)
        if effects.rank in writers.ranks:
            plain = effects.do_on_rank0("open", act, None, writers) if agreed else act()
            with effects.context.internal():
                return self._kept(plain, call, agreed, writers)
        if not agreed:
            with effects.overlay.locked():
                return self._open_alone(call)
        keep = set(call.named.get("mode", "w")).isdisjoint("wx")

        def private(at: str) -> Any:
            plain = call.changed(file=at, mode=call.named["mode"].replace("x", "w"))
            return self._kept(plain, call, agreed, writers)

        return self.follow(
            "open", act, lambda: self.prepared(call.named["file"], keep), private, writers
        )

    def follow(
        self,
        what: str,
        act: Callable[[], Any],
        prepare: Callable[[], tuple[str, str]],
        private: Callable[[str], Any],
        writers: Writers,
    ) -> Any:
        """Open this rank's copy by `private`; `prepare` makes it before rank 0 does `act`.

        What fails on rank 0 is raised here first: it is what one process would have met.
        """
        effects, prepared = self._effects, Outcome.of(prepare)
        effects.do_on_rank0(what, act, None, writers)
        path, at = prepared.unwrap()
        with effects.context.internal():
            return private(self.placed(path, at))

    def _open_alone(self, call: Call) -> Any:
        """Open the file on a rank above 0, which has it to itself."""
        file, mode = call.named["file"], call.named["mode"]
        at = overlay.named(lambda: self.alone(file, set(mode)), file)
        try:
            with self._effects.context.internal():
                how = mode.replace("x", "w")
                plain = overlay.named(lambda: call.changed(file=at, mode=how), file)
                return self._kept(plain, call, False, Writers())
        except (ValueError, TypeError):  # no such mode: there is no file
            paths.remove(at)
            raise

    def alone(self, file: Any, letters: set[str]) -> str:
        """Return where a rank above 0 writes what no other rank waits for.

        Raises:
            OSError: The operating system would raise it for the user's path, too.
        """
        effects = self._effects
        if "r" in letters and not effects.overlay.find(file).there:
            raise overlay.error(errno.ENOENT, file)
        return effects.overlay.to_write(file, keep=not letters & set("wx"), new="x" in letters)

    def adopt(self, call: Call) -> Any:
        """Make an `open` of a descriptor that ranks have opened together.

        Unless `closefd` is false, the descriptor belongs to the file from now on.
        """
        effects, number = self._effects, call.named["file"]
        if not effects.context.in_job():
            return call.plain()
        plain = call.changed(closefd=False)  # words what is wrong with its arguments
        if not plain.writable():
            return call.plain()
        handle = effects.handles[number]
        if call.named.get("closefd", True):
            del effects.handles[number]
        with effects.context.internal():
            file = rebuilt(plain, call.named, self, handle.agreed)
        file.bottom.path, file.bottom.loss = handle.path, handle.loss
        file.bottom.writers = handle.writers
        self._files.add(file)
        return file

    def end(self) -> None:
        """Flush what is open at the script's end; Python would close it. Raise what has failed."""
        with self._effects.context.internal():
            for file in list(self._files):
                if not file.closed:
                    self._quietly(file.bottom, file.flush)
        self._effects.losses.end()

    # ---- a keeper's part

    def failed(self, raw: MirroredFileIO | OpenDescriptor, error: OSError) -> None:
        """Note a failed write of rank 0, and go on, since the other ranks do.

        Raises:
            ScratchFailed: A rank above 0 cannot write its copy; there is no way on without.
            OSError: This process is no rank, or has opened the file without the others.
        """
        effects = self._effects
        if not effects.context.in_job():
            raise error
        if effects.rank not in raw.writers.ranks:
            raise ScratchFailed(
                f"rank {effects.rank} cannot keep its copy of {raw.path}: {error.strerror}; "
                "set TMPDIR to a folder with more room"
            ) from error
        if not raw.agreed:
            raise error
        raw.loss = raw.loss or effects.losses.note(raw.path, error)

    def flush(self, file: Any, flush: Callable[[], None]) -> None:
        """Flush the file; the script's own flush tells all ranks how rank 0's went."""
        raw, mode = file.bottom, self._effects.users()
        if mode is Mode.SYNCED and raw.agreed and not _by_logging():
            self.meet("flush", raw, flush)
            return
        with self._effects.context.internal():
            flush()
        if mode in (Mode.SYNCED, Mode.UNSYNCED):
            self.settle(raw)  # logging prints the error and goes on; a thread ends alone

    def close(self, file: Any, close: Callable[[], None]) -> None:
        """Close the file; all ranks wait until rank 0 has, unless Python closes a dropped file."""
        raw, mode = file.bottom, self._effects.mode()
        if file._finalizing:
            with self._effects.context.internal():
                self._quietly(raw, close)
        elif mode is Mode.SYNCED and raw.agreed:
            self.meet("close", raw, close)
        else:
            with self._effects.context.internal():
                close()
            if mode is Mode.UNSYNCED:
                self.settle(raw)

    # ----

    def _kept(self, plain: Any, call: Call, agreed: bool, writers: Writers) -> Any:
        file = rebuilt(plain, call.named, self, agreed)
        file.bottom.writers = writers
        self._files.add(file)
        return file

    def placed(self, path: str, at: str) -> str:
        """Put what `prepared` gave where this rank finds it, unless it is open there already."""
        overlay = self._effects.overlay
        return at if overlay.find(path).at == at else overlay.lay(path, at)

    def prepared(self, file: Any, keep: bool) -> tuple[str, str]:
        """Return the file's one name, and its copy on scratch, made before rank 0 touches it."""
        effects = self._effects
        found = effects.overlay.find(file)
        if found.there and found.own:
            return found.name, found.at
        at = effects.overlay.new(found.name)
        there = effects.found(found.name) if keep else ""
        if paths.is_file(there):
            paths.copy(there, at)
        return found.name, at

    def meet(
        self, what: str, raw: MirroredFileIO | OpenDescriptor, act: Callable[[], None]
    ) -> None:
        """Do `act` on every rank, to its own file; all ranks raise what failed on rank 0."""
        effects = self._effects
        if effects.rank not in raw.writers.ranks:
            with effects.context.internal():
                act()

        def real() -> list[int] | None:
            act()
            self.settle(raw)
            return paths.facts(raw.path)

        facts = effects.ask_rank0(what, real)
        effects.repeat(what, real, raw.writers)
        if what.endswith("close"):
            with effects.context.internal():
                self._compare(raw.path, facts, raw.writers)

    def settle(self, raw: MirroredFileIO | OpenDescriptor) -> None:
        """Raise the error of an earlier write of this file, if one has failed."""
        loss, raw.loss = raw.loss, None
        if loss is not None:
            self._effects.losses.settle(loss)

    def _quietly(self, raw: MirroredFileIO, act: Callable[[], None]) -> None:
        """Do `act`; Python would drop what it raises, which on rank 0 is owed to the script."""
        try:
            act()
        except OSError as error:
            if self._effects.rank in raw.writers.ranks:
                raw.loss = raw.loss or self._effects.losses.note(raw.path, error)

    def _compare(self, path: str, facts: list[int] | None, writers: Writers) -> None:
        """Drop the copy of a rank above 0 where the real file is here, the same for all readers."""
        here = writers.apart or facts == paths.facts(path)
        if self._effects.rank and facts is not None and here:
            self._effects.overlay.drop(paths.real(path, True))


def _by_logging() -> bool:
    """Return whether a logging handler flushes, after a record; it prints errors, and goes on."""
    return sys._getframe(3).f_code.co_filename == logging.__file__
