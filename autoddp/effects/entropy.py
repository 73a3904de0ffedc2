"""Random bytes that ranks draw from the system: the same on all ranks, which do not talk for it.

A draw is a keyed hash of the place that draws and of how often that place has drawn. So a rank that
draws alone somewhere, for a cache or for another try, disturbs nobody, and nobody waits.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from enum import Enum
from functools import cache
from hashlib import blake2b, shake_256
from types import CodeType, FrameType
from typing import Any

import wrapt

from autoddp.report import INSTALLED

_STDLIB = tuple(sysconfig.get_paths()[key] + "/" for key in ("stdlib", "platstdlib"))
_WRAPT = os.path.dirname(wrapt.__file__) + "/"
_OURS = os.path.dirname(os.path.dirname(__file__)) + "/"
_STARTS = tuple(_OURS + name for name in ("process/script.py", "decorator/"))
# Code that draws names of what every rank really makes: files and locks in caches and in the
# temporary folder, and shared memory. Two ranks of a node that had one name for two of these would
# write into each other's.
_NAMING = tuple(folder + name for folder in _STDLIB for name in ("tempfile.py", "multiprocessing/"))
_NAMERS = tuple(
    installed + name
    for installed in INSTALLED
    for name in ("torch/", "triton/", "joblib/", "filelock/", "fsspec/", "huggingface_hub/")
)

LONGEST = 64  # bytes of one hash
MOST = 4096  # stacks that are kept


class Role(Enum):
    """The part that a stack frame on the way to a draw has in it."""

    PLACE = "a part of the place that draws"
    PASSED = "between the place and the system: Python's own, and us"
    NAMER = "if it comes first: each rank draws its own; else a part of the place"
    START = "where the script starts: above it ranks may differ"


@cache
def _role(filename: str) -> Role:
    if filename.startswith((_OURS, _WRAPT)):
        return Role.START if filename.startswith(_STARTS) else Role.PASSED
    if any(part in filename for part in INSTALLED):
        return Role.NAMER if any(part in filename for part in _NAMERS) else Role.PLACE
    if filename.startswith(_NAMING):
        return Role.NAMER
    return Role.PASSED if filename.startswith(("<frozen ", *_STDLIB)) else Role.PLACE


def place(stack: list[tuple[CodeType, int]]) -> str | None:
    """Return the functions and lines that led to a draw; None where each rank draws its own.

    No path is among them: the file of a function may be generated, with another name on each rank.
    """
    steps: list[str] = []
    for code, line in stack:
        role = _role(code.co_filename)
        if role is Role.START:
            break
        if role is Role.NAMER and not steps:
            return None
        if role is not Role.PASSED:
            steps.append(f"{code.co_qualname} {line}")
    return "\n".join(steps)


class Entropy:
    """The draws of one rank; all ranks have one secret."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.counts: dict[bytes, int] = {}  # by a hash of the place, since places may be many
        self._seen: dict[tuple[int, ...], Any] = {}  # stacks whose places are known, and their code

    def draw(self, size: int) -> bytes | None:
        """Return `size` bytes, the same on all ranks; None where each rank draws its own."""
        made = self._place()
        if made is None:
            return None
        key = made.digest()
        count = self.counts[key] = self.counts.get(key, 0) + 1
        made.update(b" %d" % count)
        drawn = made.digest()
        return drawn[:size] if size <= LONGEST else shake_256(drawn).digest(size)

    def _place(self) -> Any:
        """Return a hash of the place, to go on with, or None; look up a stack's lines once."""
        ids: list[int] = []
        first: FrameType | None = sys._getframe(2)
        frame = first
        while frame is not None:
            ids += id(frame.f_code), frame.f_lasti
            frame = frame.f_back
        seen = self._seen.get(key := tuple(ids))
        if seen is None:
            if len(self._seen) == MOST:
                self._seen.clear()
            stack = [(frame.f_code, line) for frame, line in traceback.walk_stack(first)]
            where = place(stack)
            hashed = None if where is None else blake2b(where.encode(), key=self.secret)
            # its code is kept alive: else the `id` of it would be another's some day
            seen = self._seen[key] = hashed, [code for code, _ in stack]
        return seen[0] and seen[0].copy()
