"""The first host of SLURM's short form of a list, `node[01-03,7],gpu-a`, and where it is."""

from __future__ import annotations

import re
import socket
import subprocess

from autoddp.errors import BadInput

HOST = re.compile(r"(?:[^\[\],\s]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])+(?=,|$)")


def first(text: str) -> str:
    """Return the first host of a list, as `scontrol show hostnames` does, which may not be here.

    Raises:
        BadInput: `text` begins with no host.
    """
    match = HOST.match(text.strip())
    if match is None:
        raise BadInput(f"{text!r} is no list of hosts such as node[01-03,7],gpu-a")
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", match[0])


def address(name: str) -> str:
    """Return an address of SLURM's node `name`: some clusters call a node as no resolver does.

    Raises:
        BadInput: Neither a resolver nor SLURM knows the node.
    """
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        found = re.search(r"\bNodeAddr=(\S+)", _scontrol("show", "node", name))
        if found is None:
            raise BadInput(
                f"node 0 of this SLURM step is {name}, which this machine cannot resolve; "
                "set MASTER_ADDR to an address that every node can reach"
            ) from None
        return found[1]
    return name


def _scontrol(*words: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", "-o", *words], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""  # it is not there: the name alone must do
    return done.stdout
