"""The rules that all side effects share: which ranks make a call, and whether they synchronize.

A call is synchronized only where all ranks make it, in the same order: in the rank itself (not in a
worker process), on the thread that runs the script, outside a data set's fetch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from autoddp.comm.context import Code
from autoddp.effects import caches, paths
from autoddp.effects.overlay import Overlay
from autoddp.effects.ownership import by_interpreter, by_tracker, loads_data, users_call
from autoddp.report import users_line

if TYPE_CHECKING:
    from autoddp.comm.group import Group
    from autoddp.effects.nodes import Nodes


class Mode(Enum):
    """How a call that touches the outside world is made."""

    PASS_THROUGH = "every rank makes it, for real"
    SYNCED = "rank 0 makes it, and all ranks get its outcome"
    UNSYNCED = "rank 0 makes it, the others make it in their overlay, and no rank waits"


@dataclass(frozen=True)
class Writers:
    """The ranks that change a path for real."""

    path: str = ""
    ranks: tuple[int, ...] = (0,)  # and the first of each node that does not share its folder


class Effects:
    """The side effects of one rank: their mode, the overlay, and the calls of rank 0 for all."""

    def __init__(self, group: Group, *, synced: bool = True) -> None:
        self.group, self.context = group, group.context
        self.context.ending = self.context.over = False  # a group may have several jobs
        self.rank = group.rank
        self.synced = synced and group.size > 1  # else no rank waits for another
        self.overlay = Overlay()  # the changes of this rank, if it is not rank 0
        self.nodes: Nodes | None = None  # where there are several
        self.before_save: list[Callable[[], None]] = []  # called on all ranks before a checkpoint

    def accepts_effects(self) -> bool:
        """Return whether this is the rank itself, not inside an effect or a fetch."""
        return not self.context.passes_through() and self.context.in_job()

    def in_forked_child(self) -> bool:
        """Return whether this process is a fork of the rank, but no worker that loads data."""
        return self.context.in_fork() and not loads_data()

    def mode(self) -> Mode:
        """Return the mode of an effect at this point of the script."""
        context = self.context
        if self.in_forked_child() and self.rank:
            return Mode.PASS_THROUGH if context.passes_through() else Mode.UNSYNCED
        if context.is_internal_elsewhere():
            return Mode.PASS_THROUGH
        if context.ending or context.collecting or not context.on_script_thread():
            return Mode.UNSYNCED if context.in_job() else Mode.PASS_THROUGH
        if not self.accepts_effects():
            return Mode.PASS_THROUGH
        return Mode.SYNCED if self.synced else Mode.UNSYNCED

    def users(self, through: tuple[str, ...] = ()) -> Mode:
        """Return `mode()`, but PASS_THROUGH for a call by a library that is not in `through`."""
        mode = self.mode()
        return mode if mode is Mode.PASS_THROUGH or users_call(2, through) else Mode.PASS_THROUGH

    def touch(self, *given: Any) -> Mode:
        """Return the mode of a call about paths, by any caller.

        Calls about caches, and Python's own about code, pass through. No rank waits for a
        tracker, which works on rank 0 alone.
        """
        mode = self.mode()
        if mode is Mode.PASS_THROUGH or any(self.keeps(path) for path in given):
            return Mode.PASS_THROUGH
        if by_interpreter(2):
            return Mode.PASS_THROUGH
        return Mode.UNSYNCED if mode is Mode.SYNCED and by_tracker(2) else mode

    def keeps(self, path: Any) -> bool:
        """Return whether `path` is in a cache of a library, or is this rank's own."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        full = paths.text(path)
        return caches.keeps(full, self.overlay.private) or self.overlay.holds(full)

    def reads(self) -> bool:
        """Return whether reads of this process look into the overlay first."""
        context = self.context
        if self.rank == 0 or self.overlay.idle() or context.over:
            return False
        if context.is_internal_elsewhere():
            return False
        return not (context.depth[Code.INTERNAL] and context.on_script_thread())

    def where(self, path: Any, follow: bool = True) -> Any:
        """Return the path that this rank reads for `path`."""
        return self.overlay.where(path, follow) if self.reads() else path

    def ask_rank0(self, what: str, act: Callable[[], Any]) -> Any:
        """Call `act` on rank 0, and return its result on all ranks."""
        depth = self.context.depth
        depth[Code.INTERNAL] += 1  # as `internal` does; a clock is read in a few microseconds
        try:
            return self.group.call(f"{what} at {users_line(2)}", act)
        finally:
            depth[Code.INTERNAL] -= 1

    def writers(self, path: Any, agreed: bool = True) -> Writers:
        """Return the ranks that change `path` for real; if `agreed`, all ranks call this."""
        return Writers() if self.nodes is None else self.nodes.writers(path, agreed)

    def repeat(self, what: str, act: Callable[[], Any], writers: Writers) -> None:
        """Repeat rank 0's call on nodes without its folder; all ranks raise what fails there."""
        if self.nodes is not None:
            self.nodes.repeat(what, act, writers)

    def do_on_rank0(
        self,
        what: str,
        act: Callable[[], Any],
        tell: Callable[[Any], Any] = lambda made: made,
        writers: Writers = Writers(),
    ) -> Any:
        """Call `act` on rank 0 once all ranks have come here; all ranks raise its error.

        Returns:
            The result of `act` on the `writers`, on the others `tell` of rank 0's result.
        """
        kept: Any = None

        def keep() -> Any:
            nonlocal kept
            kept = act()
            return tell(kept)

        with self.context.internal():
            answer = self.group.call(f"{what} at {users_line(2)}", keep, all_here=True)
            self.repeat(what, keep, writers)
        return kept if self.rank in writers.ranks else answer

    def end(self) -> None:
        """End synchronization, and remove the overlay."""
        self.context.over = True
        if self.context.is_rank():
            self.overlay.end()
