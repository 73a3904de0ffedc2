"""A call where the script's process group exists already, like in a worker of Ray Train.

The ranks of the call meet over the store of that group. The group is out of sight for the time of
the call, since the function sees one process, and is there again after it. A rank that came to the
call by itself may have read another clock, drawn from a generator that nobody seeded, or ordered a
set otherwise: so its variables are compared with rank 0's, where a fork would have had those.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store

from autoddp.comm.world import World
from autoddp.errors import BadInput, Disagreement
from autoddp.process import streams
from autoddp.process.streams import Logs
from autoddp.torch_internals import another_connection, default_store, prefixed

if TYPE_CHECKING:
    from autoddp.comm.group import Group
    from autoddp.decorator.call import DecoratedCall

LAST = timedelta(minutes=2)  # in which all ranks leave the call, once one has
PLAIN = (bool, int, float, str, type(None))
DEPTH = 8  # of collections in one another


@contextmanager
def set_aside(world: World, logs: Logs) -> Iterator[tuple[Callable[[str], None], Store]]:
    """Put the script's process group out of sight inside; ranks above 0 print to their logs there.

    Yields:
        What a rank says "returned" or "raised" by, and the store that the ranks meet over.

    Raises:
        BadInput: That group is of other ranks than the job.
    """
    theirs, size = dist.group.WORLD, dist.get_world_size()
    if (dist.get_rank(), size) != (world.rank, world.world_size):
        raise BadInput(
            f"RANK is {world.rank} of WORLD_SIZE {world.world_size}, but the script has "
            f"initialised a process group in which this is rank {dist.get_rank()} of {size}; "
            "make it of all ranks"
        )
    connection = another_connection(default_store())
    call = connection.add(f"autoddp/calls/{world.rank}", 1)
    store = prefixed(f"autoddp/call/{call}", connection)

    def tell(word: str) -> None:
        store.set(f"left/{world.rank}", word)
        if word == "returned":  # the others may still need this rank
            store.wait([f"left/{rank}" for rank in range(size)], LAST)

    dist.group.WORLD = None  # the setter is on the metaclass
    try:
        with to_log(world.rank, logs):
            yield tell, store
    finally:
        dist.group.WORLD = theirs


@contextmanager
def to_log(rank: int, logs: Logs) -> Iterator[None]:
    """Send all that a rank above 0 prints inside to its log."""
    if not rank:
        yield
        return
    streams.flush()
    kept = [os.dup(number) for number in range(3)]
    try:
        logs.make()
        streams.redirect(logs.of(rank))
        yield
    finally:
        streams.flush()
        for number, ours in enumerate(kept):
            os.dup2(ours, number)
            os.close(ours)
        logs.remove()


@contextmanager
def agreed(group: Group, call: DecoratedCall) -> Iterator[None]:
    """Have rank 0's plain variables (times, names, counts) inside, and compare all that hold more.

    Variables that nothing has changed by then have this rank's own values again after it.

    Raises:
        Disagreement: A collection or an array differs, so that results computed from it would.
    """
    variables: dict[str, Any] = getattr(call.wrapped, "__globals__", {})  # of its module
    argument = "an argument of the call"
    mine = {name: value for name, value in list(variables.items()) if not name.startswith("__")}
    plain = {name: value for name, value in mine.items() if type(value) in PLAIN}
    digests = {name: digest(value) for name, value in mine.items() if name not in plain}
    digests[argument] = digest((call.args, call.kwargs))
    theirs, wanted = group.call(f"the variables at {call.site}", lambda: [plain, digests])
    differing = [name for name, value in wanted.items() if digests.get(name, value) != value]
    differing += [name for name in theirs if name in mine and name not in plain]
    if differing:
        raise Disagreement(
            f"{', '.join(differing)} at {call.site} is not on rank {group.rank} what it is on rank "
            "0: an unseeded generator, a clock, a file or the order of a set went into it; make it "
            "inside the function, seed it, or set PYTHONHASHSEED"
        )
    variables.update(theirs)
    try:
        yield
    finally:
        for name in theirs.keys() & plain.keys():
            if name in variables and variables[name] == theirs[name]:
                variables[name] = plain[name]


def digest(value: Any) -> str:
    """Hash numbers, texts, arrays and collections of them: equal values have equal digests.

    Other objects all have the same digest.
    """
    found = hashlib.blake2b(digest_size=16)
    for piece in _pieces(value, 0):
        found.update(f"{len(piece)} ".encode())  # where one ends, and another begins
        found.update(piece)
    return found.hexdigest()


def _pieces(value: Any, depth: int) -> Iterator[Any]:
    numpy = sys.modules.get("numpy")  # a script that has not imported it has none of its arrays
    if isinstance(value, (*PLAIN, complex, bytes)):
        yield repr(value).encode()
    elif isinstance(value, (dict, list, tuple)) and depth < DEPTH:
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in value.items() if isinstance(value, dict) else value:
            yield from _pieces(item, depth + 1)
    elif isinstance(value, (set, frozenset)):
        yield from sorted(digest(item).encode() for item in value)
    elif type(value) is Tensor and value.layout is torch.strided:  # no batch held by rows
        yield f"{value.dtype} {value.shape}".encode()
        flat = value.detach().reshape(-1).resolve_conj().resolve_neg()
        yield flat.view(torch.uint8).cpu().numpy()
    elif numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufcSU":
        yield f"{value.dtype} {value.shape}".encode()
        yield numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
