"""The assignment of ranks to nodes."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoddp.effects.engine import Effects


def nodes(effects: Effects) -> list[int]:
    """Return the node of each rank, rank 0's is 0; all ranks call this."""
    if effects.placed is None:
        world = effects.group.world
        mine = f"{world.node_rank} {socket.gethostname()}"  # not every launcher tells node_rank
        many = world.local_world_size < world.world_size
        said = effects.group.confer("the nodes", json.dumps(mine).encode()) if many else b"[]"
        said_by_all = json.loads(said)
        names = list(dict.fromkeys(said_by_all))
        effects.placed = [names.index(name) for name in said_by_all] or [0] * world.world_size
    return effects.placed


def leaders(effects: Effects) -> list[int]:
    """Return the first rank of each node; all ranks call this."""
    placed = nodes(effects)
    return [placed.index(node) for node in range(max(placed) + 1)]
