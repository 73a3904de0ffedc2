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

from autoddp import __version__
from autoddp.comm.group import Group
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


def compare(group: Group, script: Script, options: Options, apart: bool) -> None:
    """Compare what the nodes are about to run, or, where these started `apart`, the ranks.

    Raises:
        BadInput: Something differs; raised on all ranks.
    """
    world = group.world
    if world.world_size == (1 if apart else world.local_world_size):
        return
    mine = None if world.local_rank else facts(script, options)
    found = json.loads(group.confer("the start of the nodes", json.dumps(mine).encode()))
    nodes = [theirs for theirs in found if theirs is not None]
    for node, theirs in enumerate(nodes):
        for name in {**nodes[0], **theirs}:
            here, there = (known.get(name, "not there") for known in (nodes[0], theirs))
            if here != there:
                raise BadInput(
                    f"{name} is {there} on node {node} and {here} on node 0; start all nodes with "
                    "the same command, script and environment"
                )


def facts(script: Script, options: Options) -> dict[str, str]:
    """Return what must be alike on all nodes, by the words in which a difference is told."""
    found = {
        flag(row.name): str(getattr(options, row.name))
        for row in fields(options)
        if row.name not in APART
    }
    found |= {
        "the script": script.name,
        "the script's command line": " ".join(script.args) or "empty",
        "the version of autoddp": __version__,
        "the version of torch": torch.__version__,
        "the version of Python": platform.python_version(),
        "the number of devices that a rank sees": str(torch.accelerator.device_count()),
    }
    path = Path(script.find()).resolve()
    folder = Path.cwd() if script.module else path.parent
    for file in source.files(str(path), str(folder)):
        data = Path(file).read_bytes()
        name = f"the text of {os.path.relpath(file, folder)}"
        found[name] = f"{hashlib.sha256(data).hexdigest()[:12]} (SHA-256) in {len(data)} bytes"
    return found
