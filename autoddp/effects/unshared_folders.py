"""On nodes that do not share rank 0's folders, what rank 0 wrote is found all the same."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.comm.topology import leaders, nodes
from autoddp.effects.engine import Mode
from autoddp.effects.file_server import FileClient, FileServer
from autoddp.effects.outward import Outward
from autoddp.effects.readers import READERS, read
from autoddp.patching import Call, patch, stands_for

_WRITES = frozenset("wax+")


class UnsharedFolders(Outward):
    """The feature that hands files which the job changed from node 0 to nodes that lack them."""

    name: ClassVar[str] = "nodes"
    without: ClassVar[str] = (
        "a node that does not share rank 0's folders does not find what rank 0 wrote"
    )
    views: ClassVar[tuple[str, ...]] = ("global",)
    apart: ClassVar[bool] = True

    def setup(self, undo: ExitStack) -> None:
        """Find each rank's node, say which do not share the working folder, and serve files."""
        super().setup(undo)
        effects, placed = self.effects, nodes(self.effects.group)
        if max(placed) == 0:
            return
        with effects.context.internal():
            self._probe()
            folders = {
                placed[leader]: self.run.group.call("a folder for a node", _folder, by=leader)
                for leader in leaders(effects.group)[1:]
            }
        if self.rank == 0:
            effects.server = FileServer(effects.group)
            others = [rank for rank, node in enumerate(placed) if node]
            undo.callback(effects.server.end, others)
        elif placed[self.rank]:
            effects.scratch.changed = set()
            effects.client = FileClient(
                effects.group, effects.scratch, folders[placed[self.rank]], placed[self.rank]
            )
            undo.callback(effects.client.end)

    @patch(
        "builtins:open",
        "io:open",
        "bz2:_builtin_open",
        "tarfile:bltn_open",
        why="a file of rank 0's that this node lacks is handed over when it is read",
        optional=True,
        hot=True,
    )
    def open_here(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Open what rank 0 hands over, in worker processes, too."""
        client = self.effects.client
        if client is None:
            return original

        @stands_for(original)
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not isinstance(file, (str, bytes, os.PathLike)) or not _WRITES.isdisjoint(mode):
                return original(file, mode, *args, **kwargs)
            at = client.find(file)
            opened = original(at, mode, *args, **kwargs)
            if at is not file:
                raw = getattr(opened, "buffer", opened)
                getattr(raw, "raw", raw).name = os.fspath(file)
            return opened

        return open

    @patch(*READERS, why="a file of rank 0's that this node lacks is handed over", optional=True)
    def read_here(self, call: Call) -> Any:
        """Hand the file to readers that open by themselves what is at a path."""
        client = self.effects.client
        if client is None:
            return call.plain()
        return read(call, client.find)

    @patch("os:chdir", why="a folder that rank 0 made is there on each node")
    def enter(self, call: Call) -> Any:
        """Enter a folder, rank 0 first; what that raises, all raise."""
        path = call.named.get("path")
        if (
            not isinstance(path, (str, bytes, os.PathLike))
            or self.effects.users() is not Mode.SYNCED
        ):
            return call.plain()
        self.effects.ask_rank0("os.chdir", call.plain)
        if self.rank == 0:
            return None
        with self.effects.context.internal():
            if self.effects.client is not None:
                self.effects.client.made.make(os.path.abspath(os.fsdecode(path)))
            return call.plain()

    def _probe(self) -> None:
        """Say which nodes do not see a file that rank 0 puts into the working folder."""
        effect, placed = self.run.group.call, nodes(self.effects.group)
        name = effect("a file for all nodes", _probe_file)
        if name is None:
            return
        lacking = [
            str(placed[leader])
            for leader in leaders(self.effects.group)[1:]
            if not effect("the file for all nodes", lambda: os.path.exists(name), by=leader)
        ]
        if self.rank:
            return
        os.remove(name)
        if lacking:
            many = len(lacking) > 1
            self.run.report.say_once(
                "nodes",
                "",
                f"node{'s' * many} {', '.join(lacking)} do{'es' * (not many)} not share "
                f"{os.getcwd()} with node 0: what rank 0 writes is handed over when it is read "
                "there",
            )


def _folder() -> str:
    return tempfile.mkdtemp(prefix="autoddp-")


def _probe_file() -> str | None:
    """Make a file that all nodes should see, and return its path.

    Return None where the working folder cannot be written to: nothing is to be shared then.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=".autoddp-", dir=os.getcwd())
    except OSError:
        return None
    os.close(handle)
    return name
