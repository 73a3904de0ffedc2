"""Where the time of steps goes on a rank.

A step lasts from the end of the previous optimizer step to the end of its own, and includes all
that the script does in between, such as an evaluation. Its parts are wall times:

* loading: inside `next` of a DataLoader's iterator, and while the iterator is made;
* gathering: inside the collectives of the view (losses, gathered batches, BatchNorm), and checks
  that ranks agree;
* gradients: from the time when a backward pass has all local gradients until they are averaged:
  communication that does not overlap with computing, and waiting for slower ranks;
* computing: the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter  # this rank's clock, imported before the script's is patched
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
from autoddp.training.backwards import Backwards
from autoddp.training.iterator import LoaderIterator
from autoddp.training.replica import Replicas


class Times:
    """The times of one rank; `on_own_thread` returns whether a call is on the rank's thread."""

    def __init__(self, world: World, on_own_thread: Callable[[], bool]) -> None:
        self.world, self.on_own_thread = world, on_own_thread
        self.inside: str | None = None  # the current part; nested parts are counted as it
        self.entered = 0.0
        self.backwards = self.all_backwards = 0  # in this step, in all steps
        self.rows = self.trained = 0  # of the current batch; of batches after their backward pass
        self.restart()

    def setup(self, undo: ExitStack) -> None:
        """Measure every fetch, module and collective from here on."""
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
        around(undo, Backwards, "reduce", self.reduce)

    # ---- the parts of a step

    def restart(self) -> None:
        """Begin a step."""
        self.began, self.spent = now(), dict.fromkeys(PARTS, 0.0)

    def leave(self) -> None:
        """End the current part, if any."""
        if self.inside is not None:
            self.spent[self.inside] += now() - self.entered
            self.inside = None

    @contextmanager
    def spend(self, part: str) -> Iterator[None]:
        """Count the time inside as this part, unless it is inside of another part."""
        if self.inside is not None:
            yield
            return
        self.inside, self.entered = part, now()
        try:
            yield
        finally:
            self.leave()

    def timed(self, part: str) -> Callable[..., Any]:
        """Make a wrapper that counts the time of a method as a part of the step."""

        def call(plain: Any, *args: Any, **kwargs: Any) -> Any:
            with self.spend(part):
                return plain(*args, **kwargs)

        return call

    # ---- batches

    def iterate(self, plain: Any, loader: Any) -> Any:
        """Make an iterator of a loader that measures each fetch."""
        iterator = plain.__get__(loader, type(loader))  # binds wrappers, too
        if not self.on_own_thread():
            return iterator()
        self.hook.remove()  # slow, and only needed without a loader
        with self.spend(LOADING):
            return Timed(self, iterator())

    def fetch(self, inner: Any) -> Any:
        """Fetch the next batch, and count its time as loading."""
        if not self.on_own_thread():
            return next(inner)
        with self.spend(LOADING):
            batch = next(inner)
        self.rows = rows_of(batch)
        return batch

    def call(self, module: nn.Module, args: Any) -> None:
        """Count the rows of a module's input, if no loader makes the batch."""
        if not self.rows and torch.is_grad_enabled() and self.on_own_thread():
            self.rows = rows_of(args)

    # ---- backward passes and steps

    @contextmanager
    def backward(self, roots: list[Tensor]) -> Iterator[None]:
        """Count a backward pass, of the current batch."""
        self.backwards, self.all_backwards = self.backwards + 1, self.all_backwards + 1
        self.trained, self.rows = self.trained + self.rows, 0
        try:
            yield
        finally:
            self.leave()  # the wait for gradients

    def reduce(self, plain: Any, backwards: Any, run: Any, tops: list[Tensor], *more: Any) -> None:
        """Run a backward pass, and count the time after this rank's local gradients as gradients.

        Torch runs callbacks in the order in which they were queued: `wait` first, then DDP's,
        which waits for its buckets.
        """

        def first(gradient: Tensor) -> None:
            handle.remove()
            after_backward(wait)

        def wait() -> None:
            if self.inside is None:
                self.inside, self.entered = GRADIENTS, now()

        handle = next(top for top in tops if top.requires_grad).register_hook(first)
        plain(backwards, run, tops, *more)

    def step(self, optimizer: Any) -> dict[str, Any]:
        """Return the entry of a step; empty if there was no backward pass since the last one.

        This is the case for a second optimizer, and for a subclass that calls its parent's step.
        """
        if self.all_backwards and not self.backwards:
            return {}
        entry: dict[str, Any] = {"rows": self.trained, "backwards": self.backwards}
        entry |= {"seconds": now() - self.began} | self.spent
        self.trained = self.backwards = 0
        self.restart()
        return entry

    def rest(self, raised: object) -> dict[str, Any]:
        """Return nothing, as all times belong to steps."""
        return {}


class Timed(LoaderIterator):
    """A loader's iterator that measures every `next`."""

    def __init__(self, times: Times, inner: Any) -> None:
        super().__init__(inner)
        self.times = times

    def __next__(self) -> Any:
        return self.times.fetch(self.inner)


def now() -> float:
    """Read the clock after all work on the GPU, unless a graph is captured."""
    if not accelerator.capturing():
        accelerator.synchronize()
    return perf_counter()


def rows_of(batch: Any) -> int:
    """Return the length of the first tensor that is not 0-dimensional; 0 if there is none."""
    return next((x.shape[0] for x in tree_leaves(batch) if isinstance(x, Tensor) and x.dim()), 0)


def around(undo: ExitStack, owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Replace `owner.name` by `call`, which gets the original as its first argument."""
    plain = vars(owner)[name]

    @functools.wraps(plain)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return call(plain, *args, **kwargs)

    setattr(owner, name, replaced)
    undo.callback(setattr, owner, name, plain)
