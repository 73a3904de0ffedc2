"""What the ranks of a job agree on before they start: they compare what they run, rank 0 decides.

Each node is started by its own command. If these differ, ranks would train with other options or
scripts, and the error that ends the job later would blame the script.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import fields
from multiprocessing.connection import wait
from typing import Any

import torch

from autoddp import __version__
from autoddp.comm.line import Lines
from autoddp.comm.outcome import Outcome
from autoddp.comm.world import World
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.options.row import flag
from autoddp.process import source
from autoddp.process.devices import Devices
from autoddp.process.script import Script

# options of which each node may have its own
APART = {
    *("nproc", "node_rank", "master_addr", "master_port", "report", "record", "log_dir"),
    *("grace", "max_restarts", "hang_timeout", "verbose", "quiet"),
}
GRACE = 5.0  # seconds in which rank 0 ends after a refusal
Facts = dict[str, str]


def agree(lines: Lines, mine: Any, decide: Callable[[list[Any]], Any]) -> Any:
    """Send `mine` to rank 0, and return what rank 0 decides from what all ranks have sent.

    Raises:
        BadInput: Rank 0 refuses; raised on all ranks.
    """
    if 0 in lines:
        lines.send(json.dumps(mine).encode())
        outcome = Outcome.from_bytes(lines[0].read())
        if outcome.error is not None:
            wait([lines[0].socket], GRACE)  # rank 0's end: its launcher is to see it fail first
        return outcome.unwrap()
    sent = [mine, *(json.loads(lines[rank].read()) for rank in sorted(lines))]
    outcome = Outcome.of(lambda: decide(sent))
    lines.send(outcome.to_bytes())
    return outcome.unwrap()


def compare(found: Sequence[Facts | None]) -> None:
    """Check that all nodes are about to run the same.

    Args:
        found: Facts of each rank; None where another rank has sent those of its node.

    Raises:
        BadInput: Something differs.
    """
    facts = [theirs for theirs in found if theirs is not None]
    for number, theirs in enumerate(facts):
        for name in {**facts[0], **theirs}:
            here, there = (known.get(name, "not there") for known in (facts[0], theirs))
            if here != there:
                raise BadInput(
                    f"{name} is {there} on node {number} and {here} on node 0; start all "
                    "nodes with the same command, script and environment"
                )


def facts_of(world: World, script: Script | None, options: Options, given: Devices) -> Facts | None:
    """Return what must be equal on all nodes, by its name in messages.

    Args:
        world: Place of this rank.
        script: The script; None for a decorated call.
        options: Options of the job.
        given: Devices of this node's ranks.

    Returns:
        The facts; None on a job's only node, and where another rank of the node sends them.
    """
    if world.local_rank or world.world_size == world.local_world_size:
        return None
    found = {
        flag(row.name): str(getattr(options, row.name))
        for row in fields(options)
        if row.name not in APART
    }
    found |= {
        "the version of autoddp": __version__,
        "the version of torch": torch.__version__,
        "the version of Python": platform.python_version(),
        "what a rank computes on": given.of_a_rank,
    }
    if script is None:
        return found
    found["the script"] = script.name
    found["the script's command line"] = " ".join(script.args) or "empty"
    path, folder = os.path.realpath(script.find()), script.folder()
    for name, text in source.files(path, folder).items():
        digest = hashlib.sha256(text).hexdigest()[:12]
        known = f"{digest} (SHA-256) in {len(text)} bytes"
        found[f"the text of {os.path.relpath(name, folder)}"] = known
    return found
