"""Nodes that do not share rank 0's folders: the first rank of each changes its own disk, too.

When the script first changes something in a folder, rank 0 makes a file there, and the other nodes
look for it. Nodes that do not find it repeat rank 0's changes to the folder. If a repetition fails,
all ranks raise one error.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.effects import paths
from autoddp.effects.effect_feature import EffectFeature
from autoddp.effects.engine import Writers
from autoddp.errors import NodeFailed

NOWHERE = ""  # stands for folders that rank 0 cannot write to: no node repeats changes there


class Nodes(EffectFeature):
    """The feature that repeats rank 0's changes on the disks of nodes that do not share folders."""

    name: ClassVar[str] = "nodes"
    without: ClassVar[str] = (
        "a node that does not share rank 0's folders lacks the files that rank 0 wrote"
    )
    views: ClassVar[tuple[str, ...]] = ("global",)
    apart: ClassVar[bool] = True

    def setup(self, undo: ExitStack) -> None:
        """Find the nodes that do not share the current folder, and report them."""
        super().setup(undo)
        with self.context.internal():
            node_of = self.effects.group.nodes()
        # by their first ranks: the nodes that may lack a folder
        self._nodes = {node_of.index(node): node for node in range(1, max(node_of) + 1)}
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
        """Return the ranks that change `path` for real; all ranks must call this if `agreed`."""
        lacking = self._agreed(path) if agreed else self._lacking[self._known(path)]
        return Writers(os.fsdecode(path), (0, *lacking))

    def repeat(self, what: str, act: Callable[[], Any], writers: Writers) -> None:
        """Repeat rank 0's call on the nodes without its folder.

        Raises:
            NodeFailed: The call failed on one of them.
        """
        for first in writers.ranks[1:]:
            node = self._nodes[first]

            def repeated(node: int = node) -> None:
                try:
                    act()
                except Exception as error:
                    raise NodeFailed(
                        f"{what} of {writers.path} succeeded on node 0, but failed on node {node}, "
                        f"which does not share that folder: {type(error).__name__}: {error}"
                    ) from error

            with self.context.internal():
                self.effects.group.call(f"{what} on node {node}", repeated, by=first)

    def _agreed(self, path: Any) -> tuple[int, ...]:
        """Return the first ranks of the nodes without the folder of `path`; all ranks call it."""
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
        """Return the folder of `path`, and for a new one a file that nodes look for, else ""."""
        full = os.path.realpath(os.fsdecode(path))
        folder = next(at for at in paths.above(full) if paths.is_folder(at))
        known = self._known(full)
        if known and (root := paths.seen(known)) and root.st_dev == os.stat(folder).st_dev:
            return [known, ""]
        # `tempfile` would deadlock if it calls this while it holds its lock
        name = os.path.join(folder, f".autoddp-{secrets.token_hex(8)}")
        try:
            os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:
            return [NOWHERE, ""]
        return [folder, name]

    def _known(self, path: Any) -> str:
        """Return the nearest folder above `path` for which it is known which nodes share it."""
        full = os.path.realpath(os.fsdecode(path))
        return next((at for at in paths.above(full) if at in self._lacking), NOWHERE)
