"""Files that are open for writing: rank 0's for real, a copy in the overlay on the other ranks.

They are Python's own but for three things. A failed write of a file that all ranks have opened is
raised at its next flush or close, on all ranks. The script's own flush, and every close, bring
ranks together: after them the file is complete for every rank and whatever reads it.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from autoddp.comm.outcome import Outcome
from autoddp.effects import overlay, paths
from autoddp.effects.engine import Effects, Mode
from autoddp.effects.file_layers import Held, layered
from autoddp.errors import AutoDDPError, ScratchFailed
from autoddp.patching import Call


class OpenFiles:
    """The files that the script has open for writing."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._files: weakref.WeakSet[Any] = weakref.WeakSet()
        self._incomplete: dict[str, OSError] = {}  # dropped files, by path

    def open(self, mode: Mode, call: Call) -> Any:
        """Make a call of `open` that writes, and return this rank's file."""
        if not (mode is Mode.SYNCED or call.named):
            return call.plain()  # words what is wrong with its arguments
        path, letters = call.named.get("file", ""), set(call.named.get("mode", "w"))

        def private(at: str) -> Any:
            return call.changed(file=at)

        plain, held = self.once("open", mode, path, letters, call.plain, private)
        with self._effects.context.internal():
            file = layered(plain, call.named, self, held)
        self._files.add(file)
        return file

    def once(
        self,
        what: str,
        mode: Mode,
        path: Any,
        letters: set[str],
        act: Callable[[], Any],
        private: Callable[[str], Any],
    ) -> tuple[Any, Held]:
        """Open a file by `act` on rank 0, on the others by `private`, with a place in the overlay.

        What fails on rank 0 is raised first of all: one process would meet that.
        """
        effects, agreed, keep = self._effects, mode is Mode.SYNCED, letters.isdisjoint("wx")
        held = Held(os.path.abspath(os.fsdecode(path)), agreed, effects.writers(path, agreed))
        if effects.rank in held.writers.ranks:
            if agreed:
                return effects.do_on_rank0(what, act, lambda _: None, held.writers), held
            return self._internal(act), held

        def made(at: str) -> Any:
            if "x" in letters:  # a copy may be there where rank 0's file must not
                paths.remove(at)
            return private(at)

        if not agreed:
            place = overlay.named(lambda: self._alone(path, letters), path)
            return overlay.named(lambda: self._internal(made, place), path), held
        # before rank 0 acts: a copy is of what was there
        copied = Outcome.of(lambda: effects.overlay.to_write(path, keep, checked=True))
        try:
            effects.do_on_rank0(what, act, None, held.writers)
        except BaseException:
            self._internal(effects.overlay.drop, held.path)
            raise
        return self._internal(made, copied.unwrap()), held

    def end(self) -> None:
        """Flush what is open at the script's end; Python would close it.

        Raises:
            AutoDDPError: A file that was written is not complete, and none of its flushes or closes
                said so.
        """
        with self._effects.context.internal():
            for file in list(self._files):
                if not file.closed:
                    self._drop(file.bottom.held, file.flush)
        lost, self._incomplete = self._incomplete, {}
        if lost:
            named = "; ".join(f"{path}: {error.strerror}" for path, error in lost.items())
            raise AutoDDPError(
                f"what was written is not all there: {named}; close files to be told in time"
            )

    # ---- what becomes of an open file

    def failed(self, held: Held, error: OSError) -> None:
        """Note that a write of rank 0 failed, and go on, since the other ranks do.

        Raises:
            ScratchFailed: Another rank cannot write its copy; there is no way on without.
            OSError: This process is no rank, or has opened the file without the others.
        """
        effects = self._effects
        if not effects.context.in_job():
            raise error
        if effects.rank not in held.writers.ranks:
            raise ScratchFailed(
                f"rank {effects.rank} cannot keep its copy of {held.path}: {error.strerror}; "
                "set TMPDIR to a folder with more room"
            ) from error
        if not held.agreed:
            raise error
        held.lost = held.lost or error

    def complete(self, what: str, file: Any, act: Callable[[], None]) -> None:
        """Flush or close the file by `act`; all ranks learn how rank 0's close went.

        So they do of the script's own flush, not of logging's, which prints errors and goes on. A
        file that Python closes, since nobody holds it any more, is each rank's own affair.
        """
        effects, held = self._effects, file.bottom.held
        if file.closed:
            act()  # words the error
            return
        flush = what == "flush"
        mode = effects.users() if flush else effects.mode()
        together = mode is Mode.SYNCED and held.agreed and not file._finalizing
        if together and not (flush and _by_logging()):
            self._meet(what, held, act)
            return
        with effects.context.internal():
            if file._finalizing:
                self._drop(held, act)
            else:
                act()
        if mode is not Mode.PASS_THROUGH and not file._finalizing:
            _raise(held)

    def _meet(self, what: str, held: Held, act: Callable[[], Any]) -> None:
        """Do `act` on every rank, to its own file; all ranks raise what failed on rank 0.

        After a close, this rank reads the real file, if there is one of that name.
        """
        effects = self._effects
        if effects.rank not in held.writers.ranks:
            self._internal(act)

        def real() -> None:
            act()
            _raise(held)

        effects.ask_rank0(what, real)
        effects.repeat(what, real, held.writers)
        if what == "close" and effects.rank and paths.seen(held.path):
            self._internal(effects.overlay.drop, held.path)

    # ----

    def _alone(self, path: Any, letters: set[str]) -> str:
        """Return where a rank above 0 writes what no other rank waits for."""
        found = self._effects.overlay.find(path)
        if "r" in letters and not found.seen:
            raise overlay.error(errno.ENOENT, path)
        if "x" in letters and found.seen and found.own:  # else rank 0 may be its maker
            raise overlay.error(errno.EEXIST, path)
        return self._effects.overlay.to_write(path, keep=letters.isdisjoint("wx"))

    def _drop(self, held: Held, act: Callable[[], None]) -> None:
        """Do `act`; Python would drop what it raises, which on rank 0 is owed to the script."""
        try:
            act()
        except OSError as error:
            held.lost = held.lost or error
        if held.lost is not None and self._effects.rank in held.writers.ranks:
            self._incomplete[held.path] = held.lost

    def _internal(self, act: Callable[..., Any], *given: Any) -> Any:
        with self._effects.context.internal():
            return act(*given)


def _raise(held: Held) -> None:
    """Raise the error of an earlier write, if one has failed."""
    lost, held.lost = held.lost, None
    if lost is not None:
        raise lost


def _by_logging() -> bool:
    """Return whether a logging handler flushes, after a record; it prints errors, and goes on."""
    return sys._getframe(3).f_code.co_filename == logging.__file__
