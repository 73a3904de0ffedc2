"""Whether ranks share the rows of each batch, or each computes whole batches: what is faster.

A placement cannot change a number, so with `auto` it is chosen, by a prediction of both times: a
step of the training is counted, while ranks share the batch. What is counted are the functions of
sharded tensors, the operations and bytes of their results, and what is gathered and averaged, all
by the shapes of the whole batch, and no clock. So each run chooses alike, which matters, as the two
ways differ in the last bits of sums.

What changes is where new batches become sharded: a loader, and the entry of a module. Sharded
batches and graphs that are there remain, since the rules take any mixture.
"""

from __future__ import annotations

import resource
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from autoddp import torch_internals
from autoddp.comm import accelerator
from autoddp.patching import Feature
from autoddp.torch_internals import disable_dynamo, no_torch_function
from autoddp.training.parameters.choice import free_on
from autoddp.view.dispatch import counted
from autoddp.view.table import GRAPH

if TYPE_CHECKING:
    from autoddp.effects.run import Run

FASTER = 1.3  # how much faster whole batches have to be
OTHERS = 20  # steps of other optimizers in a row, after which their loop is the one to count
COUNTED = 3  # the step that is counted: lazy modules and states are there
AGAIN = 1000  # steps until the next one that is counted
MATMUL = {"matmul", "bmm", "mm", "__matmul__", "__rmatmul__", "baddbmm", "addmm", "einsum"}
ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True)
class Costs:
    """Seconds of what a rank does, of the order of those of `python -m benchmarks.never_slower`.

    Attributes:
        operation: A floating point operation.
        byte: A byte of a result.
        function: torch's own part of a function of the script, forward, backward and update.
        loop: torch's own part of a step, as the loader and the optimizer.
        rule: What a rule adds to a function.
        entry: What a step adds, as the entries of modules.
        collective: A collective of few bytes.
        moved: A byte that is gathered or averaged.
        overlaps: Whether the device computes while Python goes on.
    """

    operation: float
    byte: float
    function: float
    loop: float
    rule: float
    entry: float
    collective: float
    moved: float
    overlaps: bool


ON_CPU = Costs(
    operation=2e-11, byte=1e-10, function=8e-5, loop=5e-4,
    rule=3e-5, entry=2.5e-4, collective=2.5e-4, moved=5e-10, overlaps=False,
)  # fmt: skip
ON_ACCELERATOR = Costs(
    operation=5e-14, byte=2e-12, function=8e-5, loop=5e-4,
    rule=3e-5, entry=2.5e-4, collective=1e-4, moved=1e-11, overlaps=True,
)  # fmt: skip


@dataclass
class Step:
    """What a step is made of; numbers are those of the whole batch.

    Attributes:
        functions: Functions of sharded tensors.
        operations: Floating point operations that ranks share.
        size: Bytes of results that ranks share.
        collectives: How often all ranks communicate.
        moved: Bytes that are gathered.
    """

    functions: int = 0
    operations: float = 0.0
    size: float = 0.0
    collectives: int = 0
    moved: int = 0

    def add(self, func: Any, args: Any, out: Any, gathers: bool) -> None:
        """Count a function; all ranks compute all of one that `gathers`."""
        results = [*_tensors((out,))]
        self.functions += bool(results)
        if func in GRAPH or gathers:
            return
        for x in results:
            passes = 3 if getattr(x, "local", x).requires_grad else 1  # a backward is two of them
            self.size += passes * x.numel() * x.dtype.itemsize
            self.operations += passes * 2 * x.numel() * _summed(func, args)

    def seconds(self, costs: Costs, ranks: int, averaged: int) -> tuple[float, float]:
        """Predict how long a step takes with sharded batches, and with whole ones.

        Args:
            costs: Those of the device.
            ranks: The number of ranks.
            averaged: Bytes of gradients.
        """
        own = self.functions * costs.function + costs.loop
        work = self.operations * costs.operation + self.size * costs.byte
        more = self.functions * costs.rule + self.collectives * costs.collective + costs.entry
        moved = (self.moved + averaged) * costs.moved
        if costs.overlaps:
            return max(own + more, work / ranks + moved), max(own, work)
        return own + more + moved + work / ranks, own + work


class Placement(Feature):
    """The choice of a job; its state is alike on all ranks.

    Steps are those of one optimizer, as several may step in turn (GANs).

    Attributes:
        step: The steps since the last choice.
        counts: What is counted of the step that runs; None in all others.
    """

    name = "placement"
    without = "ranks share the rows of each batch, even if whole batches are faster"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.run, self.view, self.group = run, run.view, run.group
        self.step = self.others = 0
        self.next = COUNTED
        self.chosen = self.stepping = False
        self.watched: weakref.ref[Optimizer] | None = None
        self.counts: Step | None = None
        self.before = 0, 0  # that step: collectives, and bytes that were gathered
        self.counting = ExitStack()
        self.memory = _host_peak()

    @classmethod
    def wanted(cls, options: Any) -> bool:
        return options.placement != "sharded"

    def setup(self, undo: ExitStack) -> None:
        """Replicate from the start, or count a step of an optimizer now and then."""
        undo.callback(setattr, self.view, "replicates", False)
        if self.run.options.placement == "replicated":
            self.view.replicates = True
            return
        undo.callback(self.counting.close)
        undo.callback(register_optimizer_step_pre_hook(self._begin).remove)
        undo.callback(register_optimizer_step_post_hook(self._end).remove)

    def _begin(self, *_: Any) -> None:
        self.stepping = True

    @disable_dynamo
    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        """Count a step: once if a subclass calls the step of its base class."""
        context = self.view.context
        if not self.stepping or not context.is_rank() or context.in_thread():
            return
        self.stepping = False
        if torch_internals.in_backward() or accelerator.capturing():
            return
        if self.watched is None or self.watched() is not optimizer:
            self.others += 1
            # not whether that one is gone, which ranks may learn at different moments
            if self.others < OTHERS and self.watched is not None:
                return
            self._watch(optimizer)
        self.others = 0
        self.step += 1
        if self.step == self.next - 2:  # the next step may still take what was made before
            self.view.replicates = False
        elif self.step == self.next - 1:
            self._count()
        elif self.step == self.next:
            self._choose(optimizer)

    def _watch(self, optimizer: Optimizer) -> None:
        """Begin to count the steps of an optimizer."""
        self.watched, self.step, self.next = weakref.ref(optimizer), 0, COUNTED
        self.view.replicates = False
        self.counting.close()

    # ---- a step that is counted

    def _count(self) -> None:
        self.counts = counts = Step()
        known = self.group.gathered

        def add(func: Any, args: Any, out: Any) -> None:
            nonlocal known
            before, known = known, self.group.gathered
            with no_torch_function():
                counts.add(func, args, out, known > before)

        self.before = self.group.collective_check.count, self.group.gathered
        self.counting.enter_context(counted(add))

    def _choose(self, optimizer: Optimizer) -> None:
        """Take a way until the next choice, and say so if it is another one than before."""
        self.counting.close()
        assert self.counts is not None
        self.counts.collectives = self.group.collective_check.count - self.before[0]
        self.counts.moved = self.group.gathered - self.before[1]
        mine = (p for group in optimizer.param_groups for p in group["params"])
        averaged = sum(p.numel() * p.dtype.itemsize for p in mine if p.requires_grad)
        costs = ON_ACCELERATOR if self.group.kind else ON_CPU
        shared, whole = self.counts.seconds(costs, self.group.size, averaged)
        predicted = shared > FASTER * whole
        why = self._forbidden() if predicted else ""
        # memory may differ between ranks, and what a script computes on one of them alone
        faster = self.group.agree(predicted and not why)
        if predicted and not faster:
            why = why or "another rank cannot"
        way = "replicated" if faster else "sharded"
        what = (
            f"batches are {way}: a step of {self.counts.functions} functions, "
            f"{self.counts.operations:.1e} operations and {self.counts.collectives} collectives "
            f"should take {1e3 * shared:.2g} ms with sharded ones, {1e3 * whole:.2g} ms with "
            "replicated ones"
        )
        what += f", but {why}" if why else ""
        self.counts, changes, self.chosen = None, faster != self.chosen, faster
        self.view.replicates, self.step, self.next = faster, 0, AGAIN
        if changes or not self.run.report.of("placement"):
            self.run.report.add("placement", "", what)
        if changes:
            self.run.report.say_between(f"{what}; --placement {way} does so from the start")

    def _forbidden(self) -> str:
        """Return why this rank must not compute whole batches; nothing if it may."""
        if torch.are_deterministic_algorithms_enabled():
            return "the script asks for deterministic algorithms"
        if torch_internals.compiles():
            return "what is compiled for rows would be compiled again"
        if self.view.sharded_parameters:
            return "parameters are sharded"
        # what the script has taken so far is for a rank's rows
        return "whole batches may not fit in memory" if self._more_memory() > 0 else ""

    def _more_memory(self) -> int:
        """Return the bytes that whole batches may need beyond what is free on this rank."""
        more, ranks = self.group.size - 1, self.run.world.local_world_size
        host = (_host_peak() - self.memory) * more - free_on(torch.device("cpu"), ranks)
        if not self.group.kind:
            return host
        device = torch.device(self.group.kind)
        module: Any = getattr(torch, device.type)
        if not hasattr(module, "max_memory_allocated"):
            return host
        return max(host, module.max_memory_allocated() * more - free_on(device, ranks))


def _summed(func: Any, args: Any) -> float:
    """Return how many products an element of a function's result is a sum of, roughly."""
    name = getattr(func, "__name__", "")
    if name in MATMUL or name == ATTENTION:
        first = next(_tensors(args), None)
        products = 0 if first is None or not first.dim() else first.shape[-1]
        return 2 * products if name == ATTENTION else products
    if name == "embedding":
        return 0
    weights = [x for x in _tensors(args) if type(x) is Parameter and x.dim() > 1]
    return sum(x.numel() for x in weights) / weights[0].shape[0] if weights else 0


def _tensors(given: Any) -> Iterator[Tensor]:
    for x in given:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, (tuple, list)):
            yield from _tensors(x)


def _host_peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
