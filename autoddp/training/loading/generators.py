"""The states of all random generators, and those that a data set advances in a fetch."""

from __future__ import annotations

import gc
import pickle
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from autoddp.comm import accelerator
from autoddp.comm.accelerator import CPU

DRAWS = "its data set draws random numbers"
OWN = "its data set draws from a generator of its own"


class Generators:
    """A snapshot of the generators of `random`, numpy, torch and all devices in use."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        self.python = random.getstate()
        self.numpy: Any = numpy.random.get_state(legacy=False) if numpy is not None else None
        self.torch = [torch.get_rng_state(), *accelerator.states()]

    def put_back(self) -> None:
        """Restore the states of all generators."""
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        torch.set_rng_state(self.torch[0])
        accelerator.set_states(self.torch[1:])

    def same(self, other: Generators) -> bool:
        """Return whether nothing was drawn between two snapshots."""
        mine, theirs = self.torch, other.torch
        if len(mine) != len(theirs) or not all(map(torch.equal, mine, theirs)):
            return False
        # numpy may have been imported in between
        same = self.numpy is None or other.numpy is None or equal_states(self.numpy, other.numpy)
        return same and self.python == other.python


def equal_states(one: Any, other: Any) -> bool:
    """Return whether two states are equal; `==` fails for dicts that hold arrays."""
    return pickle.dumps(one) == pickle.dumps(other)


def own_generators(dataset: Any = None) -> list[Any]:
    """Return all generators but the global ones of `random`, numpy and torch.

    Those of `dataset` itself are found even if the garbage collector leaves it out (`gc.freeze`).
    """
    kinds: set[type] = {random.Random, torch.Generator}
    shared: list[Any] = [random.random.__self__, torch.default_generator]  # type: ignore[attr-defined]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kinds |= {numpy.random.Generator, numpy.random.RandomState}
        shared.append(numpy.random.rand.__self__)
    # no list of them, which the search itself would find
    held = (x for x in getattr(dataset, "__dict__", {}).values() if type(x) in kinds)
    found = {id(x): x for x in chain(held, _live_objects(kinds))}
    return [x for x in found.values() if not any(x is each for each in shared)]


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
        x.set_state(torch.tensor([*state], dtype=torch.uint8, device=CPU))
    elif hasattr(x, "bit_generator"):
        x.bit_generator.state = state
    else:
        x.set_state(state)


def new_generators_exist(since: list[Any], dataset: Any) -> bool:
    """Return whether there are generators that are not in `since`, so that they may have drawn.

    torch's samplers create torch.Generators: of these only the data set's own count.
    """
    known = {*map(id, since)}
    held = {*map(id, getattr(dataset, "__dict__", {}).values())}
    made = [x for x in own_generators(dataset) if id(x) not in known]
    return any(not isinstance(x, torch.Generator) or id(x) in held for x in made)


class DrawWatch(Generators):
    """A snapshot of the global generators, and of those that are objects."""

    def __init__(self, own: Iterable[Any]) -> None:
        super().__init__()
        self.own = [(x, _state(x)) for x in own]

    def moved(self) -> str:
        """Return what was drawn from since, in words; empty for nothing."""
        if not all(equal_states(_state(x), state) for x, state in self.own):
            return OWN
        return "" if self.same(Generators()) else DRAWS

    def put_back(self) -> None:
        """Restore the states of all generators."""
        super().put_back()
        for x, state in self.own:
            _restore(x, state)


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
        self.before: DrawWatch | None = None
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
        self.before = DrawWatch(self.own)


def _dataset() -> Any:
    """Return the data set of the current worker process."""
    return getattr(torch.utils.data.get_worker_info(), "dataset", None)
