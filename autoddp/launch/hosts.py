"""SLURM's short form of a list of hosts, `node[01-03,7],gpu-a`, and where one of them is."""

from __future__ import annotations

import re
import socket
import subprocess

from autoddp.errors import BadInput

MOST = 100_000  # hosts of a job; a range beyond it is a slip
RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand(text: str) -> list[str]:
    """Return all hosts of a list, in their order, as `scontrol show hostnames` does.

    Raises:
        BadInput: `text` is no such list, or one of too many hosts.
    """
    names: list[str] = []
    for part in _apart(text):
        made = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
            ends = [plain] if plain else _numbers(ranges, text)
            if len(made) * len(ends) > MOST:
                raise BadInput(f"{text!r} are more than {MOST} hosts")
            made = [start + end for start in made for end in ends]
        names += made
    if not all(names) or not names:
        raise BadInput(f"{text!r} is no list of hosts such as node[01-03,7],gpu-a")
    return names


def _apart(text: str) -> list[str]:
    """Split a list of hosts at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text.strip():
        depth += (letter == "[") - (letter == "]")
        if not 0 <= depth <= 1:
            break
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise BadInput(f"{text!r} is no list of hosts: its brackets do not match")
    return parts


def _numbers(ranges: str, text: str) -> list[str]:
    """Expand `01-03,7` to 01, 02, 03, 7: as many digits as the first number of a range has."""
    found: list[str] = []
    for part in ranges.split(","):
        match = RANGE.fullmatch(part)
        if match is None:
            raise BadInput(
                f"{text!r} is no list of hosts: [{ranges}] holds no numbers such as 01-03,7"
            )
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) >= MOST:
            raise BadInput(f"{text!r} are more than {MOST} hosts")
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return found


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
