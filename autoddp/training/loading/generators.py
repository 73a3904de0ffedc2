"""The states of all random generators, and those that a data set advances in a fetch."""

from __future__ import annotations

import gc
import pickle
import random
import sys
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from autoddp.comm import accelerator
from autoddp.training.loading.live import LiveGenerators, global_generators

DRAWS = "its data set draws random numbers"
OWN = "its data set draws from a generator of its own"


class Generators:
    """A snapshot of the global generators of `random`, numpy, torch and all devices in use.

    It is pickled without those in `own`, which are objects of this process.

    Args:
        own: Further generators.
    """

    def __init__(self, own: Iterable[Any] = ()) -> None:
        self.states = {name: _state(x) for name, x in global_generators().items()}
        self.devices = accelerator.states()
        self.own = {id(x): (x, _state(x)) for x in own}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "own": {}}

    def put_back(self) -> None:
        """Restore the states of all generators."""
        for name, x in global_generators().items():
            if name in self.states:
                _restore(x, self.states[name])
        accelerator.set_states(self.devices)
        for x, state in self.own.values():
            _restore(x, state)

    def moved(self) -> str:
        """Return what was drawn from since, in words; empty for nothing."""
        if not all(_equal(_state(x), state) for x, state in self.own.values()):
            return OWN
        now = Generators()
        # numpy may have been imported in between
        known = self.states.keys() & now.states.keys()
        same = all(_equal(self.states[name], now.states[name]) for name in known)
        same = same and len(self.devices) == len(now.devices)
        return "" if same and all(map(torch.equal, self.devices, now.devices)) else DRAWS

    def add(self, x: Any) -> None:
        """Take the state of a further generator, that is not drawn from yet."""
        if id(x) not in self.own and x is not torch.default_generator:
            self.own[id(x)] = x, _state(x)

    def drop_those_of_frames(self) -> None:
        """Drop the generators that at most one running function has, which has made them.

        What a data set, a closure or a module holds is found by Python's collector; the variables
        of a function are not, unless it yields.
        """
        for key, pair in [*self.own.items()]:
            others = [y for y in gc.get_referrers(pair[0]) if y is not pair]
            if sys.getrefcount(pair[0]) <= MADE_THERE and {*map(type, others)} <= {GeneratorType}:
                del self.own[key]

    def checksums(self) -> dict[str, int]:
        """Return a checksum of the state of each global generator, by its name."""
        pairs = zip(accelerator.devices(), self.devices, strict=True)
        states = self.states | {f"torch on {at}": x.cpu().numpy().tobytes() for at, x in pairs}
        return {name: zlib.crc32(pickle.dumps(state)) for name, state in states.items()}


def _references() -> int:
    """Return the references to a variable of one function that are counted above."""
    made = object()
    pair = made, None
    return sys.getrefcount(pair[0])


MADE_THERE = _references()


def _state(x: Any) -> Any:
    """Return the state of a generator."""
    if isinstance(x, random.Random):
        return x.getstate()
    if isinstance(x, torch.Generator):
        return x.get_state().numpy().tobytes()
    return x.bit_generator.state if hasattr(x, "bit_generator") else x.get_state(legacy=False)


def _restore(x: Any, state: Any) -> None:
    """Set the state of a generator."""
    if isinstance(x, random.Random):
        x.setstate(state)
    elif isinstance(x, torch.Generator):
        x.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif hasattr(x, "bit_generator"):
        x.bit_generator.state = state
    else:
        x.set_state(state)


def _equal(one: Any, other: Any) -> bool:
    """Return whether two states are equal; `==` is faster, but fails for dicts with arrays."""
    return pickle.dumps(one) == pickle.dumps(other) if isinstance(one, dict) else one == other


class Drawing(TorchFunctionMode):
    """Takes the state of a `torch.Generator` before a function of this thread draws from it.

    Python's collector does not track these objects, so that no search is sure to find one.

    Args:
        snapshot: Returns the snapshot that gets the state, or None.
    """

    def __init__(self, snapshot: Callable[[], Generators | None]) -> None:
        super().__init__()
        self._snapshot = snapshot

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        drawn = kwargs.get("generator")
        if drawn is not None and (before := self._snapshot()) is not None:
            before.add(drawn)
        return func(*args, **kwargs)


# ---- in worker processes


@dataclass
class DrawingBatch:
    """A batch whose samples drew random numbers, and their source in words."""

    batch: Any
    source: str


class WatchingCollate:
    """A collate function for worker processes that watches the generators.

    A forked worker knows those that its parent found: a search of its own would copy memory that
    they share.
    """

    def __init__(self, loader: Any, live: LiveGenerators) -> None:
        self.collate, self.worker_init = loader.collate_fn, loader.worker_init_fn
        self.before: Generators | None = None
        self.own, self.live = live.new(*holders(loader)), live
        self.forked = self.first = True

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a worker that is a fresh interpreter."""
        return {**vars(self), "own": [], "live": None, "forked": False}

    def __call__(self, samples: Any) -> Any:
        """Collate a batch; wrap the first one for which a generator advanced in `DrawingBatch`."""
        batch = self.collate(samples)
        moved = self.before.moved() if self.before is not None else ""
        if self.first and not moved:
            moved = DRAWS if self.live.new(*self._holders(), since=self.own) else ""
        self.first = False
        if not moved:
            return batch
        self.before = None
        return DrawingBatch(batch, moved)

    def begin(self, number: int) -> None:
        """Initialise a worker as the script does, then take a snapshot of the generators."""
        if not self.forked:
            self.live = LiveGenerators()
            self.own = self.live.new()
        if self.worker_init is not None:
            self.worker_init(number)  # may put a generator into any object of before
        self.own += self.live.new(*self._holders(), since=self.own)
        if self.worker_init is None and self.forked:
            gc.freeze()
        self.before = Generators(self.own)
        Drawing(lambda: self.before).__enter__()  # until the process ends

    def _holders(self) -> tuple[Any, ...]:
        info: Any = torch.utils.data.get_worker_info()
        return info.dataset, self.collate, self.worker_init


def holders(loader: Any) -> tuple[Any, ...]:
    """Return the objects of a loader that may hold generators which a fetch advances."""
    return loader.dataset, loader.collate_fn, loader.worker_init_fn
