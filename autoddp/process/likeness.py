"""The comparison of nodes before anything runs: the same command, script and environment on all.

Nodes are started one by one, each by a command of its own. Where these differ, ranks would train on
batches of two sizes, or by two texts of a script, and what ends the job later would blame the
script.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import fields
from pathlib import Path

import torch
from torch.distributed import Store

from autoddp import __version__
from autoddp.comm.group import TIMEOUT, Group
from autoddp.comm.world import World
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.options.row import flag
from autoddp.process import source
from autoddp.process.script import Script

# options of which each node may have its own
APART = {
    *("nproc", "node_rank", "master_addr", "master_port", "report", "record", "log_dir"),
    *("grace", "max_restarts", "hang_timeout", "verbose", "quiet"),
}


def compare(group: Group, script: Script | None, options: Options, apart: bool) -> None:
    """Compare what the nodes are about to run, or, where these started `apart`, the ranks.

    Raises:
        BadInput: Something differs; raised on all ranks.
    """
    world = group.world
    if world.world_size == (1 if apart else world.local_world_size):
        return
    # the ranks of a launcher of ours are forks of one process that has read all this
    mine = None
    if apart or not world.local_rank:
        mine = facts(script, options)
        mine["the number of devices that a rank sees"] = str(torch.accelerator.device_count())
    said = json.loads(group.confer("the start of the job", json.dumps(mine).encode()))
    check([theirs for theirs in said if theirs is not None], "rank" if apart else "node")


def compare_over(store: Store, world: World, nodes: int, script: Script, options: Options) -> None:
    """Compare what nodes are about to run by themselves, over a store that all their ranks reach.

    A node's first rank does it for its node; the others wait until it has, or until they are ended.

    Raises:
        BadInput: Something differs.
    """
    alike = f"alike/{world.node_rank}"
    if world.local_rank:
        store.wait([alike], TIMEOUT)
        return
    store.set(f"facts/{world.node_rank}", json.dumps(facts(script, options)))
    check([json.loads(store.get(f"facts/{node}")) for node in range(nodes)], "node")
    store.set(alike, "")


def check(found: list[dict[str, str]], kind: str) -> None:
    """Check that all nodes, or ranks, say the same of what they are about to run.

    Raises:
        BadInput: Something differs.
    """
    for number, theirs in enumerate(found):
        for name in {**found[0], **theirs}:
            here, there = (known.get(name, "not there") for known in (found[0], theirs))
            if here != there:
                raise BadInput(
                    f"{name} is {there} on {kind} {number} and {here} on {kind} 0; start all "
                    f"{kind}s with the same command, script and environment"
                )


def facts(script: Script | None, options: Options) -> dict[str, str]:
    """Return what must be alike on all nodes, by the words in which a difference is told.

    Args:
        script: The script; None where it is no file, as of `python -c`.
        options: Those of the run.
    """
    found = {
        flag(row.name): str(getattr(options, row.name))
        for row in fields(options)
        if row.name not in APART
    }
    found |= {
        "the version of autoddp": __version__,
        "the version of torch": torch.__version__,
        "the version of Python": platform.python_version(),
    }
    if script is None:
        return found
    found["the script"] = script.name
    found["the script's command line"] = " ".join(script.args) or "empty"
    path, folder = script.find(), script.folder()
    if script.text is None:
        path = str(Path(path).resolve())
    else:
        found["the script's text"] = summary(script.text.encode(errors="surrogatepass"))
    for file in source.files(path, folder, script.text):
        if file != path or script.text is None:
            found[f"the text of {os.path.relpath(file, folder)}"] = digest(file)
    return found


def digest(file: str) -> str:
    """Return a file's checksum and size; or why it cannot be read, which the run then says."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        return error.strerror or "unreadable"
    return summary(data)


def summary(data: bytes) -> str:
    """Return the checksum and the size of a file's bytes, or of a text's."""
    return f"{hashlib.sha256(data).hexdigest()[:12]} (SHA-256) in {len(data)} bytes"
