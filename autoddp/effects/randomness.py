"""All ranks hold the same random state, seed it alike, and draw the same from the system.

Ranks do not talk for what they draw from the system: it is a keyed hash of the place that draws and
of how often that place has drawn. So a rank that draws alone somewhere, for a cache or for another
try, disturbs nobody, and nobody waits.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from hashlib import blake2b, shake_256
from numbers import Integral
from types import FrameType
from typing import Any, ClassVar

import torch
import wrapt

from autoddp.comm import accelerator
from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.ownership import STDLIB, caller, is_pythons
from autoddp.patching import Call, patch, stands_for
from autoddp.report import INSTALLED

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + "/"
_OURS = (os.path.dirname(wrapt.__file__) + "/", _PACKAGE)
_STARTS = tuple(_PACKAGE + name for name in ("process/script.py", "decorator/"))
# Code that draws names of what every rank really makes: files and locks in caches and in the
# temporary folder, and shared memory. Two ranks of a node that had one name for two of these would
# write into each other's.
_NAMING = tuple(folder + name for folder in STDLIB for name in ("tempfile.py", "multiprocessing/"))
_NAMERS = tuple(
    installed + name
    for installed in INSTALLED
    for name in ("torch/", "triton/", "joblib/", "filelock/", "fsspec/", "huggingface_hub/")
)
# What torch seeds, all ranks seed alike.
_NOT = (os.path.dirname(torch.__file__) + "/", _PACKAGE)
SEEDS = (
    *("random:seed", "random:Random.seed", "numpy.random:seed", "numpy.random.mtrand:seed"),
    *("numpy.random:default_rng", "torch:manual_seed", "torch.random:manual_seed"),
    *("torch:seed", "torch.random:seed", "torch._C:Generator.seed"),
)
FROM_C = ("random:", "torch:seed", "torch.random:seed", "torch._C:")
SEED = 32  # bytes that a generator is seeded with
PROBE = "a text whose hash is that of other ranks where PYTHONHASHSEED is"
HASHES = "hash() of text, and the order of sets, differ between ranks: set PYTHONHASHSEED=0 for all"


@cache
def _passes(filename: str) -> bool:
    """Return whether code stands between the place and the system: Python's own, and ours."""
    return filename.startswith(_OURS) or (is_pythons(filename) and not _names(filename))


@cache
def _names(filename: str) -> bool:
    return filename.startswith(_NAMING) or any(part in filename for part in _NAMERS)


class Randomness(Outward):
    """The feature that gives all ranks one seed, and rank 0's answers where the system is asked."""

    name: ClassVar[str] = "randomness"
    without: ClassVar[str] = (
        "each rank draws and seeds for itself where the script leaves that to the system"
    )

    def setup(self, undo: ExitStack) -> None:
        """Start from rank 0's states: unseeded scripts draw the same numbers everywhere."""
        super().setup(undo)
        call = self.run.group.call
        theirs = call("the order of sets", lambda: hash(PROBE))
        if not self.run.group.agree(hash(PROBE) == theirs):
            self.run.report.doubt("randomness", "", HASHES)
        take(call("the states of the random generators", states))
        self._secret = call("the secret of the job", lambda: os.urandom(32))
        self._counts: Counter[bytes] = Counter()  # by a hash of the place: places may be many
        self.run.draws_alike = True

    @patch(*SEEDS, why="whatever seeds, seeds all ranks alike: the seed is rank 0's", optional=True)
    def seed_alike(self, call: Call) -> Any:
        """Seed with rank 0's number or text; where none is given, all ranks draw the same."""
        if self.effects.mode() is not Mode.SYNCED:
            return call.plain()
        name = next((n for n in ("seed", "a") if n in call.named), "a")
        value = call.named.get(name)
        if value is None and call.target.startswith(FROM_C):
            return self._choose_seed(call)
        if not isinstance(value, (Integral, float, str)) or caller().startswith(_NOT):
            return call.plain()
        value = int(value) if isinstance(value, Integral) else value
        return call.changed(**{name: self.effects.ask_rank0(call.name, lambda: value)})

    def _choose_seed(self, call: Call) -> Any:
        """Seed with what all ranks draw here, where the generator would ask the system from C."""
        drawn = self.drawn(SEED)
        if drawn is None:
            return call.plain()
        number = int.from_bytes(drawn, "little")
        if call.target.startswith("random:"):
            return call.changed(a=number)
        with self.context.internal():  # as many bits as torch's
            made = (call.instance or torch).manual_seed(number >> (8 * SEED - 53))
            return made.initial_seed()

    @patch(
        *("os:urandom", "os:getrandom", "random:_urandom"),
        why="what is drawn from the system is the same on all ranks: uuid4, secrets, default_rng()",
        hot=True,
    )
    def draw_alike(self, original: Callable[..., bytes]) -> Callable[..., bytes]:
        """Draw alike on the script's thread, whoever calls: a library's draws steer it, too."""

        @stands_for(original)
        def draw(*args: Any, **named: Any) -> bytes:
            own = original(*args, **named)
            return self.drawn(len(own)) or own

        return draw

    def drawn(self, size: int) -> bytes | None:
        """Return `size` bytes that all ranks draw here, None where each draws its own."""
        place = self._place() if self.effects.mode() is Mode.SYNCED else None
        if place is None:
            return None
        self._counts[place] += 1
        return shake_256(place + b" %d" % self._counts[place]).digest(size)

    def _place(self) -> bytes | None:
        """Return a hash of the functions, and the places in them, that led to a draw.

        No path is among them: a file may be generated, with another name on each rank.
        """
        place, found = blake2b(key=self._secret), False
        frame: FrameType | None = sys._getframe(2)
        # above where the script starts ranks may differ
        while frame is not None and not (file := frame.f_code.co_filename).startswith(_STARTS):
            if not _passes(file):
                if not found and _names(file):
                    return None
                found = True
                place.update(f"{frame.f_code.co_qualname} {frame.f_lasti}\n".encode())
            frame = frame.f_back
        return place.digest()


def states() -> list[Any]:
    """Return the states of Python's, numpy's and torch's generators."""
    numpy = sys.modules.get("numpy")
    theirs = numpy.random.get_state() if numpy is not None else None
    return [random.getstate(), theirs, torch.get_rng_state(), accelerator.states()]


def take(found: list[Any]) -> None:
    """Set the generators to the states that `states` returned."""
    ours, theirs, cpu, devices = found
    random.setstate(ours)
    if theirs and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(theirs)
    torch.set_rng_state(cpu)
    accelerator.set_states(devices)
