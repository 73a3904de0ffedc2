"""Nodes that do not share rank 0's folders: the first rank of each changes its own disk, too.

Which nodes lack a folder is found out when the script first changes something in it, by a file that
rank 0 puts there. What rank 0 has done is then done on each such node; if it fails there, all ranks
raise one error.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.comm.topology import nodes
from autoddp.effects import paths
from autoddp.effects.engine import Writers
from autoddp.effects.outward import Outward
from autoddp.errors import NodeFailed

NOWHERE = ""  # the folder of what rank 0 cannot write: no node has it for itself


class Nodes(Outward):
    """The feature that has each node find on its own disk what rank 0 has written."""

    name: ClassVar[str] = "nodes"
    without: ClassVar[str] = (
        "a node that does not share rank 0's folders does not have what rank 0 wrote"
    )
    views: ClassVar[tuple[str, ...]] = ("global",)
    apart: ClassVar[bool] = True

    def setup(self, undo: ExitStack) -> None:
        """Look which nodes share the working folder, and say which do not."""
        super().setup(undo)
        with self.context.internal():
            placed = nodes(self.effects.group)
        # by their first ranks: the nodes that may lack a folder
        self._nodes = {placed.index(node): node for node in range(1, max(placed) + 1)}
        self._lacking: dict[str, tuple[int, ...]] = {NOWHERE: ()}
        if not self._nodes:
            return
        self.effects.nodes = self
        lacking = self._agreed(os.path.join(os.getcwd(), "_"))
        if lacking and self.rank == 0:
            for first in lacking:
                what = (
                    f"node {self._nodes[first]} does not share {os.getcwd()} with node 0: its "
                    "first rank writes there what rank 0 writes, and its ranks read its own disk"
                )
                self.run.report.say_once("nodes", "", what)

    def writers(self, path: Any, agreed: bool) -> Writers:
        """Return who changes `path` for real; all ranks call this if they are `agreed`."""
        lacking = self._agreed(path) if agreed else self._lacking[self._known(path)]
        return Writers(os.fsdecode(path), (0, *lacking))

    def repeat(self, what: str, act: Callable[[], Any], writers: Writers) -> None:
        """Do on the nodes without rank 0's folder what rank 0 has done.

        Raises:
            NodeFailed: It failed on one of them.
        """
        for first in writers.ranks[1:]:
            node = self._nodes[first]

            def there(node: int = node) -> None:
                try:
                    act()
                except Exception as error:
                    raise NodeFailed(
                        f"{what} of {writers.path} went well on node 0 and not on node {node}, "
                        f"which has a folder of its own there: {type(error).__name__}: {error}"
                    ) from error

            with self.context.internal():
                self.effects.group.call(f"{what} on node {node}", there, by=first)

    def _agreed(self, path: Any) -> tuple[int, ...]:
        """Return the first ranks of the nodes that lack the folder of `path`; all call this."""
        call = self.effects.group.call
        with self.context.internal():
            folder, name = call("the nodes of a folder", lambda: self._look(path))
            if name:
                self._lacking[folder] = tuple(
                    first
                    for first in self._nodes
                    if not call("a file for all nodes", lambda: os.path.exists(name), by=first)
                )
                if self.rank == 0:
                    os.remove(name)
        return self._lacking[folder]

    def _look(self, path: Any) -> list[str]:
        """Return the known folder that `path` lies in; or a new one, and a file in it to find."""
        full = os.path.realpath(os.fsdecode(path))
        folder = next(at for at in paths.above(full) if paths.is_folder(at))
        known = self._known(full)
        if known and (root := paths.seen(known)) and root.st_dev == os.stat(folder).st_dev:
            return [known, ""]
        # not by `tempfile`, which may have its lock held: it asks here when it looks for its folder
        name = os.path.join(folder, f".autoddp-{secrets.token_hex(8)}")
        try:
            os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:
            return [NOWHERE, ""]
        return [folder, name]

    def _known(self, path: Any) -> str:
        """Return the nearest folder of `path` of which it is known who shares it."""
        full = os.path.realpath(os.fsdecode(path))
        return next((at for at in paths.above(full) if at in self._lacking), NOWHERE)
