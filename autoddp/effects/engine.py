"""The rules that all side effects share: whose call one is, and what shall become of it.

A call is agreed on over all ranks only where all ranks make it, in the same order: in the rank
itself (not in a worker process), on the thread that runs the script, outside a data set's fetch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from autoddp.comm.context import Code
from autoddp.comm.rpc import When
from autoddp.effects import caches, paths
from autoddp.effects.deferred_errors import DeferredErrors
from autoddp.effects.journal import GONE, Journal
from autoddp.effects.overlay import Overlay
from autoddp.effects.ownership import caller, is_ours, loads_data, users_call
from autoddp.effects.scratch import Scratch
from autoddp.report import is_users, users_line

if TYPE_CHECKING:
    from autoddp.comm.group import Group
    from autoddp.effects.file_server import FileClient, FileServer
    from autoddp.effects.mirrored_io import OpenDescriptor


class Mode(Enum):
    """The fate of a call that touches the outside world."""

    PASS_THROUGH = "as if we were not there"
    SYNCED = "rank 0 does it, for all"
    UNSYNCED = "rank 0 does it, the others on private scratch, and nobody waits"
    SUPPRESSED = "nobody does it: one process would not have run this"


class Effects:
    """The outside world as one rank may touch it."""

    def __init__(self, group: Group, *, synced: bool = True) -> None:
        self.group, self.context = group, group.context
        self.context.ending = self.context.over = False  # a group may have several jobs
        self.rank = group.rank
        self.synced = synced and group.size > 1  # else nobody waits for anybody
        self.scratch = Scratch()
        # what this rank finds, if it is not rank 0
        self.overlay = Overlay(self.scratch, self.context)
        self.journal: Journal | None = None  # of what rank 0 does where ranks do not meet
        self.begun = False  # whether it was decided who keeps one
        self.client: FileClient | None = None  # where this node is not rank 0's
        self.server: FileServer | None = None  # on rank 0, where there are several nodes
        self.before_save: list[Callable[[], None]] = []  # before a checkpoint, where all ranks are
        self.losses = DeferredErrors()  # what failed on rank 0 and is to be raised on all
        self.threads: WeakSet[threading.Thread] = WeakSet()  # those of every rank
        self.handles: dict[int, OpenDescriptor] = {}  # descriptors of one file on all ranks

    def accepts_effects(self) -> bool:
        """Return whether this is the rank itself, not in the midst of an effect or of a fetch."""
        return not self.context.passes_through() and self.context.in_job()

    def in_forked_child(self) -> bool:
        """Return whether the rank forked this process, as all ranks did, and not to load data."""
        return self.context.in_fork() and not loads_data()

    def mode(self) -> Mode:
        """Decide what becomes of an effect at this point of the script."""
        context = self.context
        if self.in_forked_child() and self.rank:
            return Mode.PASS_THROUGH if context.passes_through() else Mode.UNSYNCED
        if context.is_internal_elsewhere():
            return Mode.PASS_THROUGH
        if context.ending or context.collecting or not context.on_script_thread():
            return Mode.UNSYNCED if context.in_job() else Mode.PASS_THROUGH
        if not self.accepts_effects():
            return Mode.PASS_THROUGH
        if context.depth[Code.TRIAL]:
            return Mode.SUPPRESSED
        return Mode.SYNCED if self.synced else Mode.UNSYNCED

    def users(self, through: tuple[str, ...] = ()) -> Mode:
        """Decide like `mode`, but PASS_THROUGH for a library; look past files in `through`."""
        mode = self.mode()
        return mode if mode is Mode.PASS_THROUGH or users_call(2, through) else Mode.PASS_THROUGH

    def touch(self, *given: Any, through: tuple[str, ...] = ()) -> Mode:
        """Decide on a change of paths; nobody waits for a library, whose own files pass through."""
        mode = self.mode()
        if mode is Mode.PASS_THROUGH:
            return mode
        file = caller(2, through)
        if is_users(file):
            return mode
        if is_ours(file) or any(self.keeps(path) for path in given):
            return Mode.PASS_THROUGH
        return Mode.UNSYNCED if mode is Mode.SYNCED else mode

    def keeps(self, path: Any) -> bool:
        """Return whether `path` is among what libraries keep, or is this rank's own."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        full = paths.text(path)
        return caches.keeps(full, self.scratch.private) or self.scratch.holds(full)

    def note(self, path: Any, how: str = GONE, follow: bool = False) -> None:
        """Note in rank 0's journal that `path` is about to change where ranks do not meet."""
        if self.journal is not None and self.context.in_job():
            self.journal.note(self.group.passed, paths.real(path, follow), how)

    def moving(self, source: Any, target: Any) -> AbstractContextManager[None]:
        """Note in rank 0's journal that it renames a path inside, where ranks do not meet."""
        if self.journal is None or not self.context.in_job():
            return nullcontext()
        names = paths.real(source, False), paths.real(target, False)
        return self.journal.moving(self.group.passed, *names)

    def agreed(self, path: Any) -> None:
        """Note that rank 0 changes `path` for all now: what threads make there later is new."""
        if self.journal is not None and self.context.in_job():
            self.journal.agreed(paths.real(path, follow=False))

    def reads(self) -> bool:
        """Return whether files may lie elsewhere than named; if so, the places are up to date."""
        if self.overlay.idle() or not self._looks():
            return False
        if self.synced and self.context.on_script_thread() and self.context.is_rank():
            self.overlay.settle(self.group.passed)
        return True

    def follow(self) -> None:
        """Give up what this rank's processes did: rank 0 has waited for its own, which did so."""
        self.scratch.hear()
        self.scratch.own_up()
        self.overlay.number = -1

    def _looks(self) -> bool:
        """Return whether this process sees another world than the disk, outside of an effect."""
        context = self.context
        if self.rank == 0 or context.over or context.is_internal_elsewhere():
            return False
        return not (context.depth[Code.INTERNAL] and context.on_script_thread())

    def look(self, plain: Callable[[], Any], ask: Callable[[], Any]) -> Any:
        """Call `plain`, or `ask` if files may lie elsewhere; anew if rank 0 moved on meanwhile."""
        turn = self.overlay.turn
        while self._looks():
            before = turn()
            try:
                found = ask() if self.reads() else plain()
            except OSError:
                if turn() == before:
                    raise
                continue
            if turn() == before:
                return found
            if hasattr(found, "close"):
                found.close()
        return plain()

    def where(self, path: Any, follow: bool = True) -> Any:
        """Return the path where this rank reads what is at `path`.

        Raises:
            FileNotFoundError: The file is not there for this rank.
        """
        return self.overlay.where(path, follow) if self.reads() else path

    def ask_rank0(self, what: str, act: Callable[[], Any]) -> Any:
        """Ask the outside world by `act` on rank 0, and return its answer on all ranks."""
        depth = self.context.depth
        depth[Code.INTERNAL] += 1  # as `internal` does; a clock is read in a few microseconds
        try:
            return self.group.call(f"{what} at {users_line(2)}", act)
        finally:
            depth[Code.INTERNAL] -= 1
            if self.overlay.before is not None:
                self.overlay.before.come(self.group.passed)

    def do_on_rank0(
        self, what: str, act: Callable[[], Any], tell: Callable[[Any], Any] | None = None
    ) -> Any:
        """Change the outside world on rank 0 once all ranks are here; all raise its error.

        Returns:
            On rank 0 what `act` returned, on the others what `told` makes of that.
        """
        kept: Any = None

        def keep() -> Any:
            nonlocal kept
            if self.journal is not None:
                self.journal.forget(self.group.passed)
                self.journal.meet()
            self.losses.tell()
            kept = act()
            return tell(kept) if tell is not None else None

        with self.context.internal():
            answer = self.group.call(f"{what} at {users_line(2)}", keep, when=When.ALL_HERE)
        if self.overlay.before is not None:
            self.overlay.before.come(self.group.passed)
        return kept if self.rank == 0 else answer

    def found(self, path: str) -> str:
        """Return the path where this rank reads `path`; an empty one if that was removed."""
        try:
            at = self.overlay.where(path) if self.rank and not self.overlay.idle() else path
            if at is not path or self.client is None:
                return str(at)
            return str(self.client.find(path))
        except FileNotFoundError:
            return ""

    def end(self) -> None:
        """End all agreement; remove the scratch, and end the journal."""
        self.context.over = True
        if self.context.is_rank():
            self.scratch.remove()
            if self.journal is not None:
                self.journal.end()
                self.journal = None
