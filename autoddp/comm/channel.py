"""The lines of a rank: to rank 0, or to the rank that stands for its node there.

A rank has two lines to rank 0, for what must not wait for anything: orders, beside the order of
calls, and what the threads that watch say. Two more go by a tree (see `Tree`): for calls, and for
collectives. They are unix sockets on a node, TCP between nodes. Forked children have none: a data
loader's worker neither speaks for its rank nor makes it seem alive when it has ended.
"""

from __future__ import annotations

import json
import os
import weakref
from typing import TYPE_CHECKING

from autoddp.comm.line import Line
from autoddp.comm.sockets import namespace
from autoddp.comm.switchboard import Switchboard
from autoddp.comm.tree import Tree

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.world import World

ORDERS, BEATS, EFFECTS, MEETINGS = range(4)
LEAST = 4  # ranks of a node for which its first stands: of fewer, one more hop takes longer


class Channel:
    """The lines of this rank; rank 0's orders and beats go to all others, another rank's to it."""

    def __init__(self, rank: int) -> None:
        self.orders: dict[int, Line] = {}
        self.beats: dict[int, Line] = {}
        self.effects, self.meetings = Tree(rank), Tree(rank)
        this = weakref.ref(self)  # the interpreter keeps what it calls after a fork for ever

        def leave() -> None:
            channel = this()
            if channel is not None:
                channel.close()

        os.register_at_fork(after_in_child=leave)

    @classmethod
    def between(cls, world: World, store: Store, seconds: float, who: str = "rank") -> Channel:
        """Connect all ranks, or the nodes where `who` says so, for orders alone; all must come."""
        made, rank = cls(world.rank), world.rank
        if world.world_size == 1:
            return made
        with Switchboard(world, store, seconds, who) as board:
            first = [ORDERS] if who != "rank" else [ORDERS, BEATS]
            if rank:
                direct = {number: {0: board.call(0, number)} for number in first}
            else:
                direct = board.admit(range(1, world.world_size), first)
            made.orders, made.beats = direct[ORDERS], direct.get(BEATS, {})
            if who == "rank":
                above, below = _place(rank, made.orders)
                if rank:
                    made.effects.up = board.call(above, EFFECTS)
                    made.meetings.up = board.call(above, MEETINGS)
                found = board.admit(below, [EFFECTS, MEETINGS])
                made.effects.down, made.meetings.down = found[EFFECTS], found[MEETINGS]
                for line in made.effects.lines:
                    line.patient = True
        return made

    def waits(self) -> list[tuple[Line, Line]]:
        """Return each line for calls to rank 0 or from it, with the one for orders beside it."""
        if self.effects.up is not None:
            return [(self.effects.up, self.orders[0])]
        return [(line, self.orders[rank]) for rank, line in self.effects.down.items()]

    def close(self) -> None:
        """Close all lines; a second call does nothing."""
        for lines in (self.orders, self.beats):
            for line in list(lines.values()):  # a signal's handler may drop one meanwhile
                line.close()
        self.effects.close()
        self.meetings.close()


def _place(rank: int, orders: dict[int, Line]) -> tuple[int, list[int]]:
    """Return the rank above this one in the tree, and those below it, as rank 0 decides."""
    if rank:
        orders[0].send(namespace().encode())
        above, below = json.loads(orders[0].read())
        return above, below
    nodes: dict[tuple[str, bytes], list[int]] = {}
    for other, line in orders.items():
        # by its address, too: a copy of a machine has all the same numbers
        nodes.setdefault((line.address, line.read()), []).append(other)
    below = []
    for (address, _), (first, *more) in nodes.items():
        stands = address != "" and len(more) + 1 >= LEAST
        below += [first] if stands else [first, *more]
        orders[first].send(json.dumps([0, more if stands else []]).encode())
        for other in more:
            orders[other].send(json.dumps([first if stands else 0, []]).encode())
    return 0, below
