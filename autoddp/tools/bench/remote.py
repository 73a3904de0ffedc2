"""Rows of several nodes: node 0 says what is run next, and all nodes run it together.

Node 0 has a line to each other node. It says there how the script is run; which script that is,
each node's own command line says. All run it in a folder of one path: each node's own, or node 0's
where the others see that.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autoddp.comm.sockets import prompt
from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch import PORT, check_node_rank, say
from autoddp.options import Options
from autoddp.process import network
from autoddp.process.script import Script
from autoddp.tools.rehearse.child import SandboxedScript
from autoddp.tools.rehearse.runs import NOTHING, Left, Runner

MEET = 900.0  # seconds in which all nodes come
HELLO = 5.0  # seconds that whoever connects has to say who it is


def check(options: Options, nnodes: Sequence[int]) -> None:
    """Check that nodes can meet.

    Raises:
        BadInput: The address of node 0 is missing or means nothing here, or its port is taken.
    """
    if options.nnodes == 1:
        return
    if options.master_addr is None:
        raise BadInput(
            f"--nnodes is {','.join(map(str, nnodes))} without --master-addr; give the address of "
            "node 0, the same on every node"
        )
    check_node_rank(options)
    network.resolve(options.master_addr)
    if options.node_rank == 0:
        network.check_free(options.master_port or PORT)


def command(script: Script) -> list[Any]:
    """Return the words of the command line that must be alike on all nodes."""
    return ["-m", script.name, *script.args] if script.module else [script.name, *script.args]


class NodeLine:
    """A line for messages to and from another node."""

    def __init__(self, node: int, connected: socket.socket) -> None:
        self.node, self.socket = node, connected
        connected.settimeout(None)
        prompt(connected)
        self.file = connected.makefile("rwb", buffering=0)

    def send(self, message: Any) -> None:
        """Send a message to the node, which may have ended: then there is no answer."""
        with contextlib.suppress(OSError):
            self.file.write(json.dumps(message).encode() + b"\n")

    def receive(self) -> Any:
        """Receive the next message of the node.

        Raises:
            AutoDDPError: The node has ended.
        """
        try:
            return json.loads(self.file.readline())
        except (OSError, ValueError):
            raise AutoDDPError(
                f"node {self.node} has ended, or is none; see what it said there"
            ) from None

    def has_news(self) -> bool:
        """Return whether there is a message, or the end of the line."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def look(self) -> None:
        """Check that the node is still there.

        Raises:
            AutoDDPError: The node has ended.
        """
        if self.has_news() and not self.socket.recv(1, socket.MSG_PEEK):
            self.receive()

    def close(self) -> None:
        """Close the line; the node sees that it has ended."""
        self.file.close()
        self.socket.close()


class Others:
    """Node 0's lines to the other nodes, which end as it does."""

    def __init__(self, options: Options, wanted: list[Any]) -> None:
        self.options, self.command, self.code = options, wanted, 1
        self.lines: dict[int, NodeLine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        code = raised.code if isinstance(raised, SystemExit) else self.code
        for line in self.lines.values():
            line.send({"end": code})
            line.close()

    def meet(self, root: Path) -> None:
        """Wait for all other nodes, and tell them the folder of the runs.

        Raises:
            AutoDDPError: Some nodes have not come in time.
            BadInput: A node is to measure something else.
        """
        options, port = self.options, self.options.master_port or PORT
        if options.nnodes == 1:
            return
        say(options, f"waiting for {options.nnodes} nodes at {options.master_addr}:{port}")
        deadline = time.monotonic() + MEET
        with _door(options.master_addr or "", port) as door:
            while missing := options.nnodes - 1 - len(self.lines):
                door.settimeout(max(0.1, deadline - time.monotonic()))
                try:
                    connected, _ = door.accept()
                except TimeoutError:
                    raise AutoDDPError(f"{missing} nodes have not come in {MEET:.0f} s") from None
                self._admit(connected, root)

    def _admit(self, connected: socket.socket, root: Path) -> None:
        connected.settimeout(HELLO)
        try:
            node, wanted = json.loads(connected.makefile("rb", buffering=0).readline(1 << 16))
            theirs = " ".join(wanted)
        except (OSError, ValueError, TypeError):
            connected.close()  # who connected is no node
            return
        line = NodeLine(node, connected)
        if wanted != self.command:
            line.send(
                {"refused": f"node 0 measures {' '.join(self.command)}; give the same script here"}
            )
            line.close()
            raise BadInput(f"node {node} is to measure {theirs}; give the same script there")
        if node in self.lines or node not in range(1, self.options.nnodes):
            line.send(
                {
                    "refused": f"--node-rank is {node}, which node 0 does not wait for; "
                    "give another one"
                }
            )
            line.close()
            return
        line.send({"root": str(root)})
        self.lines[node] = line

    def order(self, nodes: int, message: Any) -> None:
        """Send the nodes 1 to `nodes` - 1 a message: what they shall run."""
        for node in range(1, nodes):
            self.lines[node].send(message)

    def gather(self, nodes: int) -> list[Any]:
        """Gather what was recorded on the nodes 1 to `nodes` - 1."""
        return [self.lines[node].receive() for node in range(1, nodes)]


@dataclass
class Host(Runner):
    """The runs of node 0."""

    others: Others | None = None
    recorded: list[Any] = field(default_factory=list)  # on other nodes, in the last run

    def run(
        self,
        name: str,
        options: Options,
        *,
        steps: int | None = None,
        changes: tuple[str, ...] = (),
        environ: Mapping[str, str] = NOTHING,
    ) -> Left:
        """Run the script as `Runner.run` does; ranks of other nodes add what they recorded."""
        if options.nnodes > 1:
            options = replace(options, master_port=free_port())
        self.recorded = []
        left = super().run(name, options, steps=steps, changes=changes, environ=environ)
        for steps_of, ends_of in self.recorded:
            left.steps.update({int(rank): found for rank, found in steps_of.items()})
            left.ends.update({int(rank): found for rank, found in ends_of.items()})
        return left

    def _follow(
        self, name: str, results: Path, work: Path, task: SandboxedScript, more: Mapping[str, str]
    ) -> int:
        nodes = task.options.nnodes
        if nodes == 1:
            return super()._follow(name, results, work, task, more)
        assert self.others is not None
        how: dict[str, Any] = {"options": task.options.to_json(), "changes": task.changes}
        how["steps"] = task.settings.steps
        self.others.order(nodes, {"name": name, "how": how})
        code = super()._follow(name, results, work, task, more)
        self.recorded = self.others.gather(nodes)
        return code

    def _look(self, name: str, steps: int) -> None:
        assert self.others is not None
        for line in self.others.lines.values():
            line.look()
        super()._look(name, steps)


def _door(host: str, port: int) -> socket.socket:
    """Listen at that address alone.

    Raises:
        BadInput: The address is none of this node.
    """
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server(where, family=family)
    except OSError as error:
        raise BadInput(
            f"--master-addr is {host}, where node 0 cannot listen ({error.strerror}); "
            "give one of its own"
        ) from None


def free_port() -> int:
    """Find a free port at which the ranks of a run may meet."""
    with socket.create_server(("", 0)) as door:
        number: int = door.getsockname()[1]
        return number
