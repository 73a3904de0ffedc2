"""The assignment of ranks to nodes."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoddp.comm.group import Group


def nodes(group: Group) -> list[int]:
    """Return the node of each rank, rank 0's is 0; all ranks call this."""
    if group.placed is None:
        world = group.world
        mine = f"{world.node_rank} {socket.gethostname()}"  # not every launcher gives node_rank
        many = world.local_world_size < world.world_size
        names = json.loads(group.confer("the nodes", json.dumps(mine).encode()) if many else "[]")
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        group.placed = [numbers[name] for name in names] or [0] * world.world_size
    return group.placed


def leaders(group: Group) -> list[int]:
    """Return the first rank of each node; all ranks call this."""
    placed = nodes(group)
    return [placed.index(node) for node in range(max(placed) + 1)]
