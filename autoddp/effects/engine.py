"""Calls that rank 0 makes for all ranks, and the nodes that repeat them; see `who_acts` for when.

Ranks synchronize a call only if all of them make it, in the same order: in the rank itself (not in
a worker process), on the thread that runs the script, outside of a data set's fetch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autoddp.comm.context import Code
from autoddp.effects.who_acts import WhoActs
from autoddp.report import users_line

if TYPE_CHECKING:
    from autoddp.comm.group import Group
    from autoddp.effects.nodes import Nodes


@dataclass(frozen=True)
class Writers:
    """The ranks that change a path for real."""

    path: str = ""
    ranks: tuple[int, ...] = (0,)  # and the first of each node that does not share its folder


class Effects(WhoActs):
    """The side effects of one rank: who acts, the overlay, and calls by rank 0 for all."""

    def __init__(self, group: Group, *, synced: bool = True) -> None:
        super().__init__(group.context, group.rank, synced and group.size > 1)
        self.group = group
        self.context.ending = self.context.over = False  # a group may run several jobs
        self.nodes: Nodes | None = None  # on several nodes
        self.before_save: list[Callable[[], None]] = []  # called on all ranks before a checkpoint
        # around a call that writes a file, with whether this rank keeps what it gathers
        self.saving: Callable[[bool], AbstractContextManager[None]] = lambda _: nullcontext()

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
