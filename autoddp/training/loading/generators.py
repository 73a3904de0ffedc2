"""The states of all random generators, and those that a data set advances in a fetch."""

from __future__ import annotations

import gc
import pickle
import random
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from autoddp.comm import accelerator

DRAWS = "its data set draws random numbers"
OWN = "its data set draws from a generator of its own"


class Generators:
    """A snapshot of the global generators of `random`, numpy, torch and all devices in use.

    It is pickled without those in `own`, which are objects of this process.

    Args:
        own: Further generators.
    """

    def __init__(self, own: Iterable[Any] = ()) -> None:
        self.states = {name: _state(x) for name, x in _global_generators().items()}
        self.devices = accelerator.states()
        self.own = [(x, _state(x)) for x in own]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "own": []}

    def put_back(self) -> None:
        """Restore the states of all generators."""
        for name, x in _global_generators().items():
            if name in self.states:
                _restore(x, self.states[name])
        accelerator.set_states(self.devices)
        for x, state in self.own:
            _restore(x, state)

    def moved(self) -> str:
        """Return what was drawn from since, in words; empty for nothing."""
        if not all(_equal(_state(x), state) for x, state in self.own):
            return OWN
        now = Generators()
        # numpy may have been imported in between
        known = self.states.keys() & now.states.keys()
        same = all(_equal(self.states[name], now.states[name]) for name in known)
        same = same and len(self.devices) == len(now.devices)
        return "" if same and all(map(torch.equal, self.devices, now.devices)) else DRAWS

    def checksums(self) -> dict[str, int]:
        """Return a checksum of the state of each global generator, by its name."""
        pairs = zip(accelerator.devices(), self.devices, strict=True)
        states = self.states | {f"torch on {at}": x.cpu().numpy().tobytes() for at, x in pairs}
        return {name: zlib.crc32(pickle.dumps(state)) for name, state in states.items()}


def _global_generators() -> dict[str, Any]:
    """Return the global generators of `random`, numpy and torch, without those of devices."""
    python: Any = random  # a script may replace its functions
    found = {"random": python._inst, "torch on the CPU": torch.default_generator}
    numpy = sys.modules.get("numpy")
    return found if numpy is None else found | {"numpy": numpy.random.mtrand._rand}


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


def own_generators(dataset: Any = None) -> list[Any]:
    """Return all generators but the global ones.

    Those of `dataset` itself are found even if the garbage collector leaves it out (`gc.freeze`).
    """
    kinds: set[type] = {random.Random, torch.Generator}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kinds |= {numpy.random.Generator, numpy.random.RandomState}
    # no list of them, which the search itself would find
    held = (x for x in getattr(dataset, "__dict__", {}).values() if type(x) in kinds)
    found = {id(x): x for x in chain(held, _live_objects(kinds))}
    for x in _global_generators().values():
        found.pop(id(x), None)
    return list(found.values())


def _live_objects(kinds: set[type]) -> Iterator[Any]:
    """Yield the live objects of these types.

    The garbage collector does not track torch.Generator, nor dicts whose values are all untracked.
    """
    objects = gc.get_objects()
    for x in chain(objects, gc.get_referents(*objects)):
        kind = type(x)
        if kind in kinds:
            yield x
        elif kind is dict and not gc.is_tracked(x):
            yield from (value for value in x.values() if type(value) in kinds)


def new_generators_exist(since: list[Any], dataset: Any) -> bool:
    """Return whether there are generators that are not in `since`, so that they may have drawn.

    torch's samplers create torch.Generators: of these only the data set's own count.
    """
    known = {*map(id, since)}
    held = {*map(id, getattr(dataset, "__dict__", {}).values())}
    made = [x for x in own_generators(dataset) if id(x) not in known]
    return any(not isinstance(x, torch.Generator) or id(x) in held for x in made)


# ---- in worker processes


@dataclass
class DrawingBatch:
    """A batch whose samples drew random numbers, and their source in words."""

    batch: Any
    source: str


class WatchingCollate:
    """A collate function for worker processes that watches the generators.

    A forked worker knows those that its parent found: a search of its own would copy all memory
    that they share.
    """

    def __init__(self, loader: Any) -> None:
        self.collate, self.worker_init = loader.collate_fn, loader.worker_init_fn
        self.before: Generators | None = None
        self.own = own_generators()
        self.forked = self.first = True

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a worker that is a fresh interpreter."""
        return {**vars(self), "own": [], "forked": False}

    def __call__(self, samples: Any) -> Any:
        """Collate a batch; wrap the first one for which a generator advanced in `DrawingBatch`."""
        batch = self.collate(samples)
        moved = self.before.moved() if self.before is not None else ""
        if self.first and not moved:
            moved = DRAWS if new_generators_exist(self.own, _dataset()) else ""
        self.first = False
        if not moved:
            return batch
        self.before = None
        return DrawingBatch(batch, moved)

    def begin(self, number: int) -> None:
        """Initialise a worker as the script does, then take a snapshot of the generators."""
        if self.worker_init is not None:
            self.worker_init(number)  # may put a generator into any object of before
        elif self.forked:
            gc.freeze()
        self.own = list({id(x): x for x in (*self.own, *own_generators(_dataset()))}.values())
        self.before = Generators(self.own)


def _dataset() -> Any:
    """Return the data set of the current worker process."""
    return getattr(torch.utils.data.get_worker_info(), "dataset", None)
