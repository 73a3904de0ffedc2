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

import os
import resource
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from autoddp import torch_internals
from autoddp.comm import accelerator
from autoddp.own_operations import unseen
from autoddp.patching import Feature, patch, stands_for
from autoddp.torch_internals import no_torch_function
from autoddp.training.parameters.choice import free_on
from autoddp.training.step_costs import ON_ACCELERATOR, Step, on_cpus
from autoddp.training.uncompiled import disable_dynamo
from autoddp.view.dispatch import counted

if TYPE_CHECKING:
    from autoddp.effects.run import Run

FASTER = 1.1  # how much faster sharded batches have to be where whole ones were chosen
LONG = 0.05  # seconds of whole batches with work to share, unless a third of functions gather
OTHERS = 20  # steps of another loop in a row, after which it is the one that runs
CALLS = 100  # calls of modules in a row without a backward, after which each is a step
COUNTED = 3  # the step that is counted: lazy modules and states are there
AGAIN = 1000  # steps until the next one that is counted


class Kind:
    """What stands for a loop that no optimizer of torch stands for."""


@dataclass
class Loop:
    """A training: its steps since its last choice, and that choice."""

    step: int = 0
    next: int = COUNTED
    chosen: bool = False


class Placement(Feature):
    """The choice of each loop; its state is alike on all ranks.

    Several optimizers may step in turn (GANs): the first of them stands for the loop. Behind many
    backwards without a step of an optimizer of torch, each backward is a step of one more loop: the
    script updates its weights by hand, or in hooks. Behind many calls of modules without either,
    each call is one of a third: an evaluation, or a policy that acts.

    Attributes:
        loops: The loops by their optimizers.
        current: The optimizer whose loop runs, or the kind of that loop.
        loop: That loop.
        others: Steps of other loops since its last one.
        backwards, calls: Backwards since an optimizer's last step; calls of modules since either.
        trained: Whether there was a backward, or a step.
        said: The way of the latest line.
    """

    name = "placement"
    without = "ranks share the rows of each batch, even if whole batches are faster"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.run, self.view, self.group = run, run.view, run.group
        self.loops: WeakKeyDictionary[Optimizer | Kind, Loop] = WeakKeyDictionary()
        self.current: ref[Optimizer | Kind] | None = None
        self.by_hand, self.forward = Kind(), Kind()
        self.loop = Loop()
        self.others = self.backwards = self.calls = 0
        self.trained = self.said = self.stepping = False
        self.before = 0, 0  # the step that is counted: collectives, and bytes that were gathered
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
        self.view.undecided, self.view.at_call = True, self._called
        undo.callback(setattr, self.view, "undecided", False)
        undo.callback(setattr, self.view, "at_call", None)
        undo.callback(self.counting.close)
        undo.callback(register_optimizer_step_pre_hook(self._begin).remove)
        undo.callback(register_optimizer_step_post_hook(self._end).remove)

    def _begin(self, *_: Any) -> None:
        self.stepping = True

    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        loop = self.loop
        if (
            torch.compiler.is_compiling()
            or not self.stepping
            or self.current is None
            or self.current() is not optimizer
            or loop.step >= loop.next - COUNTED
            or self.group.kind
            or get_ident() != self.view.context.thread
            or any(self.view.context.depth)
        ):
            return self._stepped(optimizer)
        self.stepping = False  # all that a step does which decides nothing
        self.others = self.backwards = self.calls = 0
        loop.step += 1
        return None

    @disable_dynamo
    def _stepped(self, optimizer: Optimizer) -> None:
        """Count an optimizer's step: once if a subclass calls the step of its base class."""
        context = self.view.context
        if self.stepping and context.is_script():
            self.stepping = False
            if not torch_internals.in_backward() and not any(context.depth):
                self.backwards = self.calls = 0
                self.trained = True
                self._step(optimizer)

    @patch(
        "torch.autograd:backward",
        "torch.autograd:grad",
        why="they are the steps of a loop that no optimizer of torch shows",
        hot=True,
    )
    def backward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replace it by a function that counts those of the script."""

        @stands_for(plain)
        def backward(*args: Any, **kwargs: Any) -> Any:
            found = plain(*args, **kwargs)
            if self.view.at_call is not None and self._in_loop():
                self.backwards += 1
                self.calls, self.trained = 0, True
                if self.backwards >= OTHERS:
                    self._step(self.by_hand)
            return found

        return backward

    def _called(self) -> None:
        """Count an outermost call of a module, unless a backward may follow."""
        if (self.trained and torch.is_grad_enabled()) or not self._in_loop():
            return
        self.calls += 1
        if self.calls >= CALLS:
            self._step(self.forward)

    def _in_loop(self) -> bool:
        """Return whether this is the script's own code, which all ranks come to."""
        context = self.view.context
        return (
            get_ident() == context.thread
            and not torch.compiler.is_compiling()
            and not torch_internals.in_backward()
            and torch_internals.transform() is None
            and not torch_internals.dispatch_depth()  # a mode may have tensors without numbers
            and context.is_rank()
            and not any(context.depth)  # a data set's may be on some ranks alone
        )

    def _step(self, of: Optimizer | Kind) -> None:
        """Count a step of a loop."""
        if accelerator.capturing():
            return
        if self.current is None or self.current() is not of:
            self.others += 1
            # not whether that one is gone, which ranks may learn at different moments
            if self.others < OTHERS and self.current is not None:
                return
            self._enter(of)
        self.others, loop = 0, self.loop
        loop.step += 1
        if loop.step == loop.next - 2:  # the next step may still take what was made before
            self.view.replicates, self.view.undecided = False, loop.chosen or loop.next == COUNTED
        elif loop.step == loop.next - 1:
            self._count()
        elif loop.step == loop.next:
            self._choose(of, loop)

    def _enter(self, of: Optimizer | Kind) -> None:
        """Go on with this loop, in the way that was chosen for it."""
        self.counting.close()
        self.view.undecided = False
        self.current = ref(of)
        self.loop = loop = self.loops.setdefault(of, Loop())
        loop.step = min(loop.step, loop.next - COUNTED)
        self.view.replicates = loop.chosen

    # ---- a step that is counted

    def _count(self) -> None:
        self.view.counts = counts = Step()
        self.counting.callback(setattr, self.view, "counts", None)
        known = self.group.gathered

        def add(func: Any, args: Any, out: Any) -> None:
            nonlocal known
            before, known = known, self.group.gathered
            with no_torch_function():
                counts.add(func, args, out, known > before)

        self.before = self.group.collective_check.count, self.group.gathered
        self.counting.enter_context(counted(add))

    @unseen
    def _choose(self, of: Optimizer | Kind, loop: Loop) -> None:
        """Take a way until the next choice, and say so if it is another one than before."""
        counts = self.view.counts
        self.counting.close()
        assert counts is not None
        counts.collectives = self.group.collective_check.count - self.before[0]
        counts.moved = self.group.gathered - self.before[1]
        groups = of.param_groups if isinstance(of, Optimizer) else ()
        mine = (p for group in groups for p in group["params"])
        gradients = sum(p.numel() * p.dtype.itemsize for p in mine if p.requires_grad)
        here = self.run.world.local_world_size, len(os.sched_getaffinity(0))
        costs = ON_ACCELERATOR if self.group.kind else on_cpus(*here)
        averaged = not self.view.computes_alike()
        shared, whole = counts.seconds(costs, self.group.size, gradients, averaged)
        # so that a choice close to the limit does not go to and fro
        predicted = (FASTER if loop.chosen else 1.0) * shared > whole
        why = self._forbidden(whole, counts) if predicted else ""
        # memory may differ between ranks, and what a script computes on one of them alone
        faster = self.group.agree(predicted and not why)
        if predicted and not faster:
            why = why or "another rank cannot"
        way = "replicated" if faster else "sharded"
        what = (
            f"batches are {way}: a step of {counts.functions} functions, "
            f"{counts.operations:.1e} operations and {counts.collectives} collectives "
            f"should take {1e3 * shared:.2g} ms with sharded ones, {1e3 * whole:.2g} ms with "
            "replicated ones" + (f", but {why}" if why else "")
        )
        changes, loop.chosen, self.view.undecided = faster != loop.chosen, faster, False
        self.view.replicates, loop.step, loop.next = faster, 0, AGAIN
        if changes or not self.run.report.of("placement"):
            self.run.report.add("placement", "", what)
        if changes and faster != self.said:  # not for each model of a search
            self.said = faster
            self.run.report.say_between(f"{what}; --placement {way} does so from the start")

    def _forbidden(self, whole: float, counts: Step) -> str:
        """Return why this rank must not compute whole batches; nothing if it may."""
        if torch.are_deterministic_algorithms_enabled():
            return "the script asks for deterministic algorithms"
        if torch_internals.compiles():
            return "what is compiled for rows would be compiled again"
        if self.view.sharded_parameters:
            return "parameters are sharded"
        if whole > LONG and 3 * counts.gathering < counts.functions:
            return "such a step has work enough to share"
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


def _host_peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
