"""A bench's node above 0: it runs what node 0 says, sends what was recorded, and ends with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoddp.errors import AutoDDPError, BadInput
from autoddp.launch import PORT, say
from autoddp.options import Options
from autoddp.process.script import Script
from autoddp.report import PREFIX
from autoddp.tools.bench.remote import HELLO, MEET, NodeLine, command
from autoddp.tools.rehearse import runs
from autoddp.tools.rehearse.log_tail import tail
from autoddp.tools.rehearse.runs import Runner

AGAIN = 0.2  # seconds until a node looks for node 0 once more


class RunOverrun(Exception):
    """The error that node 0 has more to say, or has ended, while a run goes on."""


@dataclass
class Guest(Runner):
    """The runs of a node above 0."""

    node: int = 0
    line: NodeLine | None = None

    def __post_init__(self) -> None:
        self.shared = self.root.exists()  # node 0's folder is seen from here
        self.mine = self.root / f"node{self.node}"
        if not self.shared:  # the mode is that of the last folder alone
            self.root.mkdir(mode=0o700, parents=True)
        self.mine.mkdir(mode=0o700)

    def _results(self) -> Path:
        return self.mine / str(len(os.listdir(self.mine)))

    def _copy(self) -> Path:
        return self.root / "folder" if self.shared else super()._copy()

    def _keep(self, work: Path, results: Path) -> None:
        if not self.shared:
            super()._keep(work, results)

    def _look(self, name: str, steps: int) -> None:
        assert self.line is not None
        if self.line.has_news():
            raise RunOverrun

    def close(self) -> None:
        """Delete what this node has made, and leave node 0's folder as it is."""
        shutil.rmtree(self.mine if self.shared else self.root, ignore_errors=True)


def take_part(script: Script, options: Options) -> int:
    """Run what node 0 says, and return its exit code.

    Raises:
        AutoDDPError: There is no node 0, or it has ended without a word.
        BadInput: Node 0 does not want this node.
    """
    with runs.stoppable():
        line = find(options)
        line.send([options.node_rank, command(script)])
        answer = line.receive()
        if "refused" in answer:
            raise BadInput(answer["refused"])
        say(options, f"node {options.node_rank} runs what node 0 measures, and ends with it")
        root, node = Path(answer["root"]), options.node_rank or 0
        guest = Guest(script, "times", root=root, node=node, line=line)
        try:
            with runs.enough_room(guest.root):
                while "end" not in (order := line.receive()):
                    with contextlib.suppress(RunOverrun):
                        line.send(recorded(guest, options, order["name"], **order["how"]))
        finally:
            line.close()
            guest.parents.close()
            guest.close()
    return int(order["end"])


def find(options: Options) -> NodeLine:
    """Connect to node 0, as soon as it is there.

    Raises:
        AutoDDPError: Node 0 does not come in time.
    """
    where, deadline = (
        (options.master_addr or "", options.master_port or PORT),
        time.monotonic() + MEET,
    )
    say(options, f"waiting for node 0 at {where[0]}:{where[1]}")
    while time.monotonic() < deadline:
        try:
            return NodeLine(0, socket.create_connection(where, HELLO))
        except OSError:
            time.sleep(AGAIN)
    raise AutoDDPError(
        f"no node 0 was at {where[0]}:{where[1]} in {MEET:.0f} s; start it, or see its address"
    )


def recorded(
    guest: Guest, mine: Options, name: str, options: str, steps: int | None, changes: list[str]
) -> Any:
    """Make one run, tell here how it failed, and return what this node's ranks recorded."""
    how = replace(Options.from_json(options), node_rank=mine.node_rank, report=None)
    left = guest.run(name, how, steps=steps, changes=tuple(changes))
    if left.code and not mine.quiet:
        print(
            "\n".join([f"{PREFIX} {name}: exit code {left.code}", *tail(left.err)]), file=sys.stderr
        )
    left.forget()
    return [left.steps, left.ends]
