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
    if o.scale_lr != "none" and o.batch != "per-rank":
        raise BadInput(
            f"--scale-lr is {o.scale_lr!r} with --batch {o.batch}, where the batch does not grow; "
            "add --batch per-rank"
        )
    if o.record_kind != "all" and o.record is None:
        raise BadInput(
            f"--record-kind is {o.record_kind!r}, but nothing is recorded; add --record DIR"
        )
    if o.summary and o.quiet:
        raise BadInput(
            "--summary is given with --quiet, where nothing is said; leave out one of them"
        )
    if o.plot is not None and o.record_kind == "numbers":
        raise BadInput(
            f"--plot is {o.plot} with --record-kind numbers, where no times are recorded; "
            "leave out --record-kind"
        )
    _averaging(o)
    _compression(o)
    _nodes(o)


def _averaging(o: Options) -> None:
    every = o.average_every
    if every is None:
        if o.average_momentum:
            raise BadInput(
                "--average-momentum is given, but weights are not averaged; add --average-every"
            )
        return
    if o.shard_optimizer:
        raise BadInput(
            f"--average-every is {every!r} with --shard-optimizer, where ranks step by "
            "themselves; leave out one of them"
        )
    if every != "epoch" and not re.fullmatch("[1-9][0-9]{0,8}", every):
        raise BadInput(
            f"--average-every is {every!r}; it takes a number of steps, from 1, or epoch"
        )
    if o.view != "local":
        raise BadInput(
            f"--average-every is {every!r} with --view {o.view}, where all ranks train one "
            "model; add --view local"
        )


def _compression(o: Options) -> None:
    how = o.compress
    if not re.fullmatch("none|fp16|bf16|powersgd(:[1-9][0-9]{0,3})?", how):
        raise BadInput(
            f"--compress is {how!r}; it takes none, fp16, bf16, powersgd or powersgd:RANK"
        )
    if how != "none" and o.strict:
        raise BadInput(
            f"--compress is {how!r} with --strict, but its gradients are not those of one "
            "process; leave out one of them"
        )
    if how != "none" and o.average_every is not None:
        raise BadInput(
            f"--compress is {how!r} with --average-every, where none travel; leave out one of them"
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
