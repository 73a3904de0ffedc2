"""Options that do not go together, and values that are more than a kind, a word or a number."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autoddp.errors import BadInput

if TYPE_CHECKING:
    from autoddp.options import Options


def check(o: Options) -> None:
    """Refuse options of which one makes another senseless.

    Raises:
        BadInput: There are such; it names both, and what to do.
    """
    _averaging(o)
    _nodes(o)


def _averaging(o: Options) -> None:
    every = o.average_every
    if every is None:
        return
    if every != "epoch" and not re.fullmatch("[1-9][0-9]{0,8}", every):
        raise BadInput(
            f"--average-every is {every!r}; it takes a number of steps, from 1, or epoch"
        )
    if o.view != "local":
        raise BadInput(
            f"--average-every is {every!r} with --view {o.view}, where all ranks train one "
            "model; add --view local"
        )


def _nodes(o: Options) -> None:
    if o.master_port is not None and not 0 < o.master_port < 65536:
        raise BadInput(f"--master-port is {o.master_port}; a port is from 1 to 65535")
    if o.node_rank is not None and not 0 <= o.node_rank < o.nnodes:
        way = (
            f"it goes from 0 to {o.nnodes - 1}"
            if o.nnodes > 1
            else "give the number of nodes there"
        )
        raise BadInput(f"--node-rank is {o.node_rank} with --nnodes {o.nnodes}; {way}")
