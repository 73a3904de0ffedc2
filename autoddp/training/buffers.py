"""Buffers of modules on accelerators, which become rank 0's now and then."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autoddp.comm import accelerator
from autoddp.comm.context import Code
from autoddp.patching import Feature
from autoddp.torch_internals import disable_dynamo
from autoddp.training.fingerprint import WHY, Fingerprint
from autoddp.training.replica import alive, flattened, put_back

if TYPE_CHECKING:
    from autoddp.effects.run import Run

OFTEN, EVERY = 3, 100  # the first steps of an optimizer, and one in so many


class Buffers(Feature):
    """Buffers on accelerators, kept alike on all ranks in spite of rounding.

    Accelerators add up in an order of their own: what ranks compute alike differs in its last bits.
    Gradients are averaged, so weights stay alike. Buffers that are updated outside of autograd (a
    codebook's moving average, the statistics of a BatchNorm that runs whole) would drift apart.
    """

    name = "buffers"
    without = (
        "on accelerators, buffers that are updated outside of autograd may drift apart by rounding"
    )
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.run, self.view, self.group = run, run.view, run.group
        # of each optimizer
        self.steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def setup(self, undo: ExitStack) -> None:
        """Register a hook where ranks compute on accelerators, and mean the same by a buffer."""
        if self.group.kind and self.run.options.batchnorm == "exact":
            undo.callback(register_optimizer_step_pre_hook(self.before_step).remove)

    @disable_dynamo
    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Share rank 0's buffers when gradients are compared, too: the host waits there anyway."""
        context = self.view.context
        if not context.is_script() or accelerator.capturing():
            return
        count = self.steps[optimizer] = self.steps.get(optimizer, 0) + 1
        if (count <= OFTEN or count % EVERY == 0) and self.view.recent_modules:
            with self.view.context.within(Code.PLAIN), torch.no_grad():
                self._share(list(self._floats()))

    def _floats(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers of the modules that were called, the same ones on all ranks."""
        seen: set[int] = set()
        for module in alive(self.group, self.view.recent_modules):
            for name, x in module.named_buffers():
                dense = x.layout is torch.strided and x.is_floating_point()
                if dense and x.device.type == self.group.kind and id(x) not in seen:
                    seen.add(id(x))
                    yield f"buffer {name} of {type(module).__name__}", x

    def _share(self, found: list[tuple[str, Tensor]]) -> None:
        if not found:
            return
        prints = Fingerprint()
        for name, x in found:
            prints.add(name, [x])
        if differs := prints.difference(self.group):
            # by more than rounding: a buffer that nothing was written into, maybe
            name, ours, other, theirs = differs
            self.run.report.doubt(
                "buffers",
                "",
                f"{name} is not the same on all ranks (rank 0 has {ours}, rank {other} {theirs}): "
                f"{WHY}; rank 0's is taken",
            )
        kinds = list(flattened([x for _, x in found]))
        self.group.broadcast([flat for _, flat in kinds])
        for some, flat in kinds if self.group.rank else ():
            put_back(some, flat)
