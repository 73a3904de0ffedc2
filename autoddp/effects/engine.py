"""The rules for all side effects: which ranks make a call, and whether they synchronize.

Ranks synchronize a call only if all of them make it, in the same order: in the rank itself (not in
a worker process), on the thread that runs the script, outside of a data set's fetch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from autoddp.comm.context import Code
from autoddp.effects import paths
from autoddp.effects.overlay import Overlay
from autoddp.effects.ownership import (
    by_compiler,
    by_interpreter,
    by_tracker,
    loads_data,
    users_call,
)
from autoddp.report import INSTALLED, users_line

if TYPE_CHECKING:
    from autoddp.comm.group import Group
    from autoddp.effects.nodes import Nodes

# Each rank's own: devices, shared memory, the kernel's files, and installed packages.
SYSTEM = ("/dev/", "/proc/", "/sys/")
PACKAGES = (*INSTALLED, "/__pycache__/")


class Mode(Enum):
    """How ranks make a call that has side effects."""

    PASS_THROUGH = "every rank makes it, for real"
    SYNCED = "rank 0 makes it, and all ranks get its outcome"
    UNSYNCED = "rank 0 makes it, the others make it in their overlay, and no rank waits"


@dataclass(frozen=True)
class Writers:
    """The ranks that change a path for real."""

    path: str = ""
    ranks: tuple[int, ...] = (0,)  # and the first of each node that does not share its folder


class Effects:
    """The side effects of one rank: their mode, the overlay, and calls by rank 0 for all."""

    def __init__(self, group: Group, *, synced: bool = True) -> None:
        self.group, self.context = group, group.context
        self.context.ending = self.context.over = False  # a group may run several jobs
        self.rank = group.rank
        self.synced = synced and group.size > 1  # else no rank waits for another
        self.overlay = Overlay()  # private changes of a rank above 0
        self.nodes: Nodes | None = None  # on several nodes
        self.before_save: list[Callable[[], None]] = []  # called on all ranks before a checkpoint

    def accepts_effects(self) -> bool:
        """Return whether this is the rank itself, outside of an effect or a fetch."""
        return not self.context.passes_through() and self.context.in_job()

    def in_forked_child(self) -> bool:
        """Return whether this process is a fork of the rank, and not a worker of a data loader."""
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
        """Return `mode()`, or PASS_THROUGH for a call by a library that is not in `through`."""
        mode = self.mode()
        return mode if mode is Mode.PASS_THROUGH or users_call(2, through) else Mode.PASS_THROUGH

    def touch(self, *touched: Any) -> Mode:
        """Return the mode of a call that concerns these paths, whoever makes it.

        Calls that concern a rank's own files, and calls of the interpreter or of a compiler, pass
        through. Calls of an experiment tracker, which runs on rank 0 only, are not synchronized.
        """
        mode = self.mode()
        if mode is Mode.PASS_THROUGH or any(self.keeps(path) for path in touched):
            return Mode.PASS_THROUGH
        if by_interpreter(2) or by_compiler(2):
            return Mode.PASS_THROUGH
        return Mode.UNSYNCED if mode is Mode.SYNCED and by_tracker(2) else mode

    def keeps(self, path: Any) -> bool:
        """Return whether `path` is each rank's own, or is private to this rank.

        A library's cache is not: it is a folder like any other.
        """
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        full = paths.text(path)
        if full.startswith(SYSTEM) or any(part in full for part in PACKAGES):
            return True
        private = self.overlay.private
        return self.overlay.holds(full) or any(f"{full}/".startswith(f"{one}/") for one in private)

    def reads(self) -> bool:
        """Return whether this process reads from the overlay first."""
        context = self.context
        if self.rank == 0 or self.overlay.idle() or context.over:
            return False
        if context.is_internal_elsewhere():
            return False
        return not (context.depth[Code.INTERNAL] and context.on_script_thread())

    def where(self, path: Any, follow: bool = True) -> Any:
        """Return the path from which this rank reads `path`."""
        return self.overlay.where(path, follow) if self.reads() else path

    def ask_rank0(self, what: str, act: Callable[[], Any]) -> Any:
        """Call `act` on rank 0, and return its result on all ranks."""
        depth = self.context.depth
        depth[Code.INTERNAL] += 1  # like `internal`, but faster, as for clocks
        try:
            return self.group.call(f"{what} at {users_line(2)}", act)
        finally:
            depth[Code.INTERNAL] -= 1

    def writers(self, path: Any, agreed: bool = True) -> Writers:
        """Return the ranks that change `path` for real; all call this if `agreed`."""
        return Writers() if self.nodes is None else self.nodes.writers(path, agreed)

    def repeat(self, what: str, act: Callable[[], Any], writers: Writers) -> None:
        """Repeat rank 0's call on nodes without its folder; all ranks raise an error from there."""
        if self.nodes is not None:
            self.nodes.repeat(what, act, writers)

    def do_on_rank0(
        self,
        what: str,
        act: Callable[[], Any],
        to_send: Callable[[Any], Any] = lambda result: result,
        writers: Writers = Writers(),
    ) -> Any:
        """Call `act` on rank 0 once all ranks have arrived; all ranks raise its error.

        Returns:
            The result of `act` on the `writers`; on other ranks `to_send` of rank 0's result.
        """
        result: Any = None

        def call() -> Any:
            nonlocal result
            result = act()
            return to_send(result)

        with self.context.internal():
            answer = self.group.call(f"{what} at {users_line(2)}", call, all_here=True)
            self.repeat(what, call, writers)
        return result if self.rank in writers.ranks else answer

    def end(self) -> None:
        """End synchronization, and remove the overlay."""
        self.context.over = True
        if self.context.is_rank():
            self.overlay.end()
