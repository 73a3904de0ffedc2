"""Where the time of steps goes, on every rank: an entry for each step, and one at the end.

A step reaches from the end of the optimizer step before to the end of its own, so that all that a
script does in between is in it, but an evaluation: when batches were fetched of which none was
trained on, or an epoch has ended, the step begins with the next fetch. The parts of a step are wall
times:

* loading: inside the `next` of a DataLoader's iterator, and where the iterator is made (workers
  start);
* gathering: inside the collectives of the view (losses, gathered batches, BatchNorm), and the
  checks that ranks are equal;
* gradients: from where a backward has all gradients of this rank to where they are averaged: what
  of the communication of DDP's buckets computing does not hide. Waiting for a slower rank is in it;
* computing: the rest, Python and the view's own work included.
"""

from __future__ import annotations

import functools
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter  # the clock itself: a script's own is answered by rank 0
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from autoddp.comm import accelerator
from autoddp.comm.group import Group
from autoddp.comm.node_memory import NodeMemory
from autoddp.comm.world import World
from autoddp.tools.record.recording import GATHERING, GRADIENTS, LOADING, PARTS
from autoddp.torch_internals import after_backward
from autoddp.training.iterator import LoaderIterator
from autoddp.training.replica import Replicas


class Times:
    """The times of one rank; `here` tells whether a call is of the rank's own thread."""

    def __init__(self, world: World, here: Callable[[], bool]) -> None:
        self.world, self.here = world, here
        self.inside: str | None = None  # the part that is spent now; those within it count as it
        self.entered = 0.0
        self.stepping = 0  # how deep in an optimizer's step
        self.backwards = self.ever = 0  # in this step, in all
        self.fetched: set[int] = set()  # iterators, since the last backward
        self.over = False  # one of them came to its end
        self.rows = self.trained = 0  # of the batch that is computed; of those trained on
        self.restart()

    def setup(self, undo: ExitStack) -> None:
        """Look at every fetch, module and collective from here on."""
        around(undo, DataLoader, "__iter__", self.iterate)
        self.hook = nn.modules.module.register_module_forward_pre_hook(self.call)
        undo.callback(self.hook.remove)
        if self.world.world_size == 1:
            return
        for name in ("all_reduce", "all_gather"):
            around(undo, Group, name, self.timed(GATHERING))
        for name in ("average", "average_dense"):
            around(undo, Replicas, name, self.timed(GRADIENTS))
        around(undo, NodeMemory, "all_reduce", self.timed(GRADIENTS))  # of a bucket
        around(undo, Replicas, "arm", self.arm)

    # ---- the parts of a step

    def restart(self) -> None:
        """Begin a step, in which nothing is spent yet."""
        self.began, self.spent = now(), dict.fromkeys(PARTS, 0.0)
        self.fetched.clear()
        self.over = False

    def enter(self, part: str) -> bool:
        """Begin a part here, and return whether it is the outermost."""
        outermost = self.inside is None
        if outermost:
            self.inside, self.entered = part, now()
        return outermost

    def leave(self) -> None:
        """End the part that was begun, if any."""
        if self.inside is not None:
            self.spent[self.inside] += now() - self.entered
            self.inside = None

    @contextmanager
    def spend(self, part: str) -> Iterator[None]:
        """Spend the time of what is done in here on a part."""
        outermost = self.enter(part)
        try:
            yield
        finally:
            if outermost:
                self.leave()

    def timed(self, part: str) -> Callable[..., Any]:
        """Make a wrapper that counts the time of a method as a part of the step."""

        def call(plain: Any, *args: Any, **kwargs: Any) -> Any:
            with self.spend(part):
                return plain(*args, **kwargs)

        return call

    # ---- batches

    def iterate(self, plain: Any, loader: Any) -> Any:
        """Make an iterator of a loader, every fetch of which is looked at."""
        made = plain.__get__(loader, type(loader))  # it may be a wrapper of a method
        if not self.here():
            return made()
        if self.over:
            self._evaluated()
        self.hook.remove()  # it costs time, and is needed where no loader is
        with self.spend(LOADING):
            return Timed(self, made())

    def fetch(self, inner: Any) -> Any:
        """Fetch the next batch, and count its time as loading."""
        if not self.here():
            return next(inner)
        if self.over or id(inner) in self.fetched:
            self._evaluated()
        self.fetched.add(id(inner))
        try:
            with self.spend(LOADING):
                batch = next(inner)
        except StopIteration:
            self.over = True
            raise
        self.rows = rows_of(batch)
        return batch

    def _evaluated(self) -> None:
        """Begin the step anew: what came before was no training, unless a backward was in it."""
        if not self.backwards:
            self.restart()

    def call(self, module: nn.Module, args: Any) -> None:
        """Count the rows that the outermost module is given, where no loader makes the batch."""
        if not self.rows and torch.is_grad_enabled() and self.here():
            self.rows = rows_of(args)

    # ---- backward passes and steps

    @contextmanager
    def backward(self, roots: list[Tensor]) -> Iterator[None]:
        """Count the backward inside, of the batch that was computed last."""
        self.backwards, self.ever = self.backwards + 1, self.ever + 1
        self.trained, self.rows = self.trained + self.rows, 0
        self.fetched.clear()
        self.over = False
        try:
            yield
        finally:
            self.leave()  # of waiting for gradients

    def arm(self, plain: Any, replicas: Any, leaves: Any, roots: list[Tensor]) -> Any:
        """Arm the replicas, and count as waiting what follows this rank's own backward.

        Torch calls back in the order in which it was asked: first here, then DDP,
        which waits for its buckets.
        """
        made = plain(replicas, leaves, roots)
        root = next(top for top in roots if top.requires_grad)

        def first(gradient: Tensor) -> None:
            handle.remove()
            after_backward(wait)

        def wait() -> None:
            self.enter(GRADIENTS)

        handle = root.register_hook(first)
        return made

    def begin(self, optimizer: Any) -> None:
        """Count how deep steps are nested: a subclass calling its parent's step is one step."""
        self.stepping += 1

    def step(self, optimizer: Any) -> dict[str, Any]:
        """Return the entry of a step; of a second optimizer after one backward there is none."""
        self.stepping -= 1
        if self.stepping or (self.ever and not self.backwards):
            return {}
        entry: dict[str, Any] = {"rows": self.trained, "backwards": self.backwards}
        entry |= {"seconds": now() - self.began} | self.spent
        self.trained = self.backwards = 0
        self.restart()
        return entry

    def rest(self, raised: object) -> dict[str, Any]:
        """Return the most memory that the process took."""
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"memory": taken, "GPU memory": accelerator.ask("max_memory_allocated")}


class Timed(LoaderIterator):
    """A loader's iterator, of which every `next` is timed."""

    def __init__(self, times: Times, inner: Any) -> None:
        super().__init__(inner)
        self.times = times

    def __next__(self) -> Any:
        return self.times.fetch(self.inner)


def now() -> float:
    """Read the clock once the GPU has come as far as Python has, unless a graph is captured."""
    if not accelerator.capturing():
        accelerator.synchronize()
    return perf_counter()


def rows_of(batch: Any) -> int:
    """Return the length of the first tensor that has one, 0 if none has."""
    return next((x.shape[0] for x in tree_leaves(batch) if isinstance(x, Tensor) and x.dim()), 0)


def around(undo: ExitStack, owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Have `owner.name` call `call`, whose first argument is what was there before."""
    plain = vars(owner)[name]

    @functools.wraps(plain)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return call(plain, *args, **kwargs)

    setattr(owner, name, replaced)
    undo.callback(setattr, owner, name, plain)
