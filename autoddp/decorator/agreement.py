"""The comparison of a rank's variables with rank 0's, where each has run the script by itself.

A fork has all that rank 0 has. A rank that came to the call by itself, as a worker of Ray Train
does, may have read another clock, drawn from a generator that nobody seeded, or ordered a set
otherwise.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp.errors import Disagreement

if TYPE_CHECKING:
    from autoddp.comm.group import Group

PLAIN = (bool, int, float, str, type(None))
MOST = 1 << 24  # bytes at each end of an array that are looked at
SKIPPED = "no numbers or texts"


@contextmanager
def agreed(group: Group, site: str, variables: dict[str, Any], arguments: Any) -> Iterator[None]:
    """Have rank 0's plain variables (times, names, counts) inside, and compare all that hold more.

    Variables that nothing has changed by then have this rank's own values again after it.

    Raises:
        Disagreement: A collection or an array differs, so that results computed from it would.
    """

    def rank_0s() -> list[Any]:
        plain = {name: value for name, value in _mine(variables) if type(value) in PLAIN}
        more = {name: digest(value) for name, value in _mine(variables) if type(value) not in PLAIN}
        return [plain, more, digest(arguments)]

    plain, more, theirs = group.call(f"the variables at {site}", rank_0s)
    if group.rank == 0:
        yield
        return
    mine = dict(_mine(variables))
    differing = [
        *(name for name, value in more.items() if name in mine and digest(mine[name]) != value),
        *(name for name in plain if type(mine.get(name)) not in PLAIN),
        *["an argument of the call"] * (digest(arguments) != theirs),
    ]
    if differing:
        raise Disagreement(
            f"{', '.join(differing)} at {site} is not on rank {group.rank} what it is on rank 0: "
            "an unseeded generator, a clock, a file or the order of a set went into it; make it "
            "inside the function, seed it, or set PYTHONHASHSEED"
        )
    variables.update(plain)
    try:
        yield
    finally:
        for name in plain.keys() & mine.keys():
            if name in variables and variables[name] == plain[name]:
                variables[name] = mine[name]


def digest(value: Any) -> str:
    """Hash numbers, texts, arrays and collections of them: equal values have equal digests.

    Other objects all have the same digest.
    """
    found = hashlib.blake2b(digest_size=16)
    for piece in _pieces(value, 0):
        found.update(len(piece).to_bytes(8, "little") + piece)  # where one ends, and another begins
    return found.hexdigest()


def _pieces(value: Any, depth: int) -> Iterator[bytes]:
    numpy = sys.modules.get("numpy")  # a script that has not imported it has none of its arrays
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        yield repr(value).encode()
    elif isinstance(value, dict) and depth < 8:
        for item in value.items():
            yield from _pieces(item, depth + 1)
    elif isinstance(value, (list, tuple)) and depth < 8:
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in value:
            yield from _pieces(item, depth + 1)
    elif isinstance(value, (set, frozenset)):
        yield from sorted(digest(item).encode() for item in value)
    elif type(value) is Tensor and value.layout is torch.strided:  # no batch held by rows
        yield f"{value.dtype} {value.shape}".encode()
        flat = value.detach().reshape(-1).resolve_conj().resolve_neg().view(torch.uint8)
        yield bytes(torch.cat([flat[:MOST], flat[MOST:][-MOST:]]).cpu().numpy())
    elif numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufcSU":
        yield f"{value.dtype} {value.shape}".encode()
        flat = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
        yield flat[:MOST].tobytes() + flat[MOST:][-MOST:].tobytes()
    else:
        yield SKIPPED.encode()


def _mine(variables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in list(variables.items()) if not name.startswith("__"))
