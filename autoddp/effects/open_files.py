"""Files that the script holds open for writing: rank 0's for real, the others' on scratch."""

from __future__ import annotations

import errno
import logging
import os
import posix
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from autoddp.comm.outcome import Outcome
from autoddp.effects import paths, sight
from autoddp.effects.engine import Effects, Mode
from autoddp.effects.journal import EMPTIED, FILLED, GROWN
from autoddp.effects.mirrored_io import MirroredFileIO, OpenDescriptor, rebuilt
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
        effects, agreed = self._effects, mode is Mode.SYNCED
        if not (agreed or call.named):
            return call.plain()  # words what is wrong with its arguments
        if mode is Mode.SUPPRESSED:
            effects.context.written += 1
            return call.changed(file=os.devnull, mode=call.named["mode"].replace("x", "w"))
        if effects.rank == 0:
            if not agreed:
                letters = set(call.named["mode"])
                self.noted(
                    call.named["file"], letters, safe="w" not in letters or self._opens(call)
                )
            plain = effects.do_on_rank0("open", call.plain) if agreed else call.plain()
            with effects.context.internal():
                return self._kept(plain, call, agreed)
        if not agreed:
            return self._open_alone(call)
        keep = set(call.named.get("mode", "w")).isdisjoint("wx")

        def private(at: str) -> Any:
            plain = call.changed(file=at, mode=call.named["mode"].replace("x", "w"))
            return self._kept(plain, call, agreed)

        return self.follow(
            "open", call.plain, lambda: self.prepared(call.named["file"], keep), private
        )

    def follow(
        self,
        what: str,
        act: Callable[[], Any],
        prepare: Callable[[], tuple[str, str]],
        private: Callable[[str], Any],
    ) -> Any:
        """Open this rank's copy by `private`; `prepare` makes it before rank 0 does `act`.

        What fails on rank 0 is raised here first: it is what one process would have met.
        """
        effects, prepared = self._effects, Outcome.of(prepare)
        effects.do_on_rank0(what, act)
        path, at = prepared.unwrap()
        effects.scratch.show(path)
        with effects.context.internal():
            made = private(at)
            effects.scratch.lay(path, at)
        return made

    def _open_alone(self, call: Call) -> Any:
        """Open the file on a rank above 0, which has it to itself."""
        file, mode = call.named["file"], call.named["mode"]
        at = sight.named(lambda: self.alone(file, set(mode)), file)
        try:
            with self._effects.context.internal():
                how = mode.replace("x", "w")
                plain = sight.named(lambda: call.changed(file=at, mode=how), file)
                return self._kept(plain, call, False)
        except (ValueError, TypeError):  # no such mode: there is no file
            self._effects.overlay.forget(file)
            raise

    def _opens(self, call: Call) -> bool:
        """Return whether `open` will not raise once the file is another, which is still empty."""
        path = paths.real(call.named["file"], True)
        try:
            with self._effects.context.internal():
                call.changed(file=os.devnull).close()
        except (ValueError, TypeError, LookupError):
            return False
        return posix.access(path, os.W_OK)

    def alone(self, file: Any, letters: set[str]) -> str:
        """Return where a rank above 0 writes what no other rank waits for.

        Raises:
            OSError: The operating system would raise it for the user's path, too.
        """
        effects = self._effects
        effects.reads()  # brings the overlay up to date
        if "r" in letters and not effects.overlay.find(file).there:
            raise sight.error(errno.ENOENT, file)
        return effects.overlay.to_write(file, keep=not letters & set("wx"), new="x" in letters)

    def noted(self, file: Any, letters: set[str], safe: bool = True) -> None:
        """Note a write that rank 0 does alone; if `safe`, an empty file may replace the old one."""
        if "x" in letters:
            if paths.seen(paths.real(file, False), follow=False) is None:  # else `open` raises
                self._effects.note(file)
            return
        how = EMPTIED if safe else FILLED
        if "w" not in letters:
            how = FILLED if "+" in letters else GROWN
        self._effects.note(file, how, follow=True)

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
        self._files.add(file)
        return file

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Discard what is written inside to the open files, whoever holds a method of theirs."""
        with ExitStack() as undo:
            for file in list(self._files):
                if not file.closed:
                    undo.enter_context(self._muted(file))
            yield

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
        if effects.rank:
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

    def _kept(self, plain: Any, call: Call, agreed: bool) -> Any:
        file = rebuilt(plain, call.named, self, agreed)
        self._files.add(file)
        return file

    def prepared(self, file: Any, keep: bool) -> tuple[str, str]:
        """Return the file's one name, and its copy on scratch, made before rank 0 touches it."""
        effects = self._effects
        effects.reads()
        scratch, found = effects.scratch, effects.overlay.find(file)
        if found.there and effects.overlay.own(found):
            return found.name, found.at
        at = scratch.new(found.name)
        if keep and effects.client is not None and found.at == found.name:
            there = effects.found(found.name)
            if paths.is_file(there):
                paths.copy(there, at)
        elif keep:
            effects.overlay.bring(found.name, at)
        return found.name, at

    def meet(
        self, what: str, raw: MirroredFileIO | OpenDescriptor, act: Callable[[], None]
    ) -> None:
        """Do `act` on every rank, to its own file; all ranks raise what failed on rank 0."""
        effects = self._effects
        if effects.rank:
            with effects.context.internal():
                act()

        def real() -> list[int] | None:
            act()
            self.settle(raw)
            return paths.facts(raw.path)

        facts = effects.ask_rank0(what, real)
        if what.endswith("close"):
            with effects.context.internal():
                self._compare(raw.path, facts)

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
            if self._effects.rank == 0:
                raw.loss = raw.loss or self._effects.losses.note(raw.path, error)

    def _compare(self, path: str, facts: list[int] | None) -> None:
        """Drop the copy of a rank above 0 where the real file is here, the same for all readers."""
        scratch = self._effects.scratch
        # on a node that does not share rank 0's folders, the file is handed over when it is read
        here = self._effects.client is not None or facts == paths.facts(path)
        if self._effects.rank and facts is not None and here:
            scratch.drop(paths.real(path, True))

    @contextmanager
    def _muted(self, file: Any) -> Iterator[None]:
        raw, internal = file.bottom, self._effects.context.internal
        buffer = getattr(file, "buffer", file)
        with internal():
            file.flush()
            at = buffer.tell() if buffer.seekable() else None
        raw.muted = True
        try:
            yield
        finally:
            with internal():
                if not file.closed:
                    file.flush()
                    self._effects.context.written += at is not None and buffer.tell() != at
                    if at is not None:
                        buffer.seek(at)
            raw.muted = False


def _by_logging() -> bool:
    """Return whether a logging handler flushes, after a record; it prints errors, and goes on."""
    return sys._getframe(3).f_code.co_filename == logging.__file__
