"""All ranks have the same random state, the same seeds, and the same system random numbers.

System random numbers need no communication: they are a keyed hash of the place in the code that
draws, and of how often that place has drawn. A rank may therefore draw without the others, as for a
cache or a retry, and later draws still agree.
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
from autoddp.effects.effect_feature import EffectFeature
from autoddp.effects.ownership import STDLIB, caller, is_pythons
from autoddp.effects.who_acts import Mode
from autoddp.patching import Call, patch, stands_for
from autoddp.report import INSTALLED

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + "/"
_OURS = (os.path.dirname(wrapt.__file__) + "/", _PACKAGE)
_STARTS = tuple(_PACKAGE + name for name in ("process/script.py", "decorator/"))
# Code that draws names of files and shared memory that each rank makes, for its workers and its
# compilers. With equal names, two ranks of a node would write into each other's files.
_NAMING = tuple(folder + name for folder in STDLIB for name in ("tempfile.py", "multiprocessing/"))
_NAMERS = tuple(
    installed + name for installed in INSTALLED for name in ("torch/", "triton/", "joblib/")
)
# Seeds that torch sets are the same on all ranks already.
_NOT = (os.path.dirname(torch.__file__) + "/", _PACKAGE)
SEEDS = (
    *("random:seed", "random:Random.seed", "numpy.random:seed", "numpy.random.mtrand:seed"),
    *("numpy.random:default_rng", "torch:manual_seed", "torch.random:manual_seed"),
    *("torch:seed", "torch.random:seed", "torch._C:Generator.seed"),
)
FROM_C = ("random:", "torch:seed", "torch.random:seed", "torch._C:")
SEED = 32  # bytes of a seed
PROBE = "a text whose hash is equal on all ranks if PYTHONHASHSEED is"
HASHES = "hash() of text, and the order of sets, differ between ranks: set PYTHONHASHSEED=0 for all"


@cache
def _passes(filename: str) -> bool:
    """Return whether a file is Python's or autoddp's, and not the place that draws."""
    return filename.startswith(_OURS) or (is_pythons(filename) and not _names(filename))


@cache
def _names(filename: str) -> bool:
    return filename.startswith(_NAMING) or any(part in filename for part in _NAMERS)


class Randomness(EffectFeature):
    """The feature that gives all ranks the same seeds and the same system random numbers."""

    name: ClassVar[str] = "randomness"
    without: ClassVar[str] = (
        "each rank has its own seeds and random numbers where the script takes them from the system"
    )

    def setup(self, undo: ExitStack) -> None:
        """Start from rank 0's states: without a seed, too, all ranks draw the same numbers."""
        super().setup(undo)
        call = self.run.group.call
        rank0s = call("the order of sets", lambda: hash(PROBE))
        if not self.run.group.agree(hash(PROBE) == rank0s):
            self.run.report.doubt("randomness", "", HASHES)
        set_states(call("the states of the random generators", states))
        self._secret = call("the secret of the job", lambda: os.urandom(32))
        self._counts: Counter[bytes] = Counter()  # by a hash of the place, as there may be many
        self.run.draws_alike = True

    @patch(*SEEDS, why="all ranks are seeded with rank 0's seed", optional=True)
    def seed_alike(self, call: Call) -> Any:
        """Seed with rank 0's number or text; without one, all ranks draw the same seed."""
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
        """Seed a generator, which would ask the system from C, with bytes that all ranks draw."""
        seed = self.drawn(SEED)
        if seed is None:
            return call.plain()
        value = int.from_bytes(seed, "little")
        if call.target.startswith("random:"):
            return call.changed(a=value)
        with self.context.internal():  # as many bits as torch's
            generator = (call.instance or torch).manual_seed(value >> (8 * SEED - 53))
            return generator.initial_seed()

    @patch(
        *("os:urandom", "os:getrandom", "random:_urandom"),
        why="system random numbers are the same on all ranks, as for uuid4, secrets, default_rng()",
        hot=True,
    )
    def draw_alike(self, original: Callable[..., bytes]) -> Callable[..., bytes]:
        """Make a `urandom` whose bytes are the same on all ranks, also for calls by libraries."""

        @stands_for(original)
        def draw(*args: Any, **named: Any) -> bytes:
            drawn = original(*args, **named)
            return self.drawn(len(drawn)) or drawn

        return draw

    def drawn(self, size: int) -> bytes | None:
        """Return `size` bytes that are the same on all ranks, None if each rank draws its own."""
        place = self._place() if self.effects.mode() is Mode.SYNCED else None
        if place is None:
            return None
        self._counts[place] += 1
        return shake_256(place + b" %d" % self._counts[place]).digest(size)

    def _place(self) -> bytes | None:
        """Return a hash of the calling functions and of the places in them; None for names.

        File names are left out: a file may be generated, with another name on each rank.
        """
        place, first = blake2b(key=self._secret), True
        frame: FrameType | None = sys._getframe(2)
        # frames outside of the script may differ between ranks
        while frame is not None and not (file := frame.f_code.co_filename).startswith(_STARTS):
            if not _passes(file):
                if first and _names(file):
                    return None
                first = False
                place.update(f"{frame.f_code.co_qualname} {frame.f_lasti}\n".encode())
            frame = frame.f_back
        return place.digest()


def states() -> list[Any]:
    """Return the states of Python's, numpy's and torch's generators."""
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    return [random.getstate(), of_numpy, torch.get_rng_state(), accelerator.states()]


def set_states(new: list[Any]) -> None:
    """Set the generators to the states that `states` returned."""
    of_python, of_numpy, cpu, devices = new
    random.setstate(of_python)
    if of_numpy and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(of_numpy)
    torch.set_rng_state(cpu)
    accelerator.set_states(devices)
