"""Buffers of modules on accelerators, which become rank 0's now and then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autoddp.comm import accelerator
from autoddp.comm.context import Code
from autoddp.training.fingerprint import WHY, Fingerprint
from autoddp.training.replica import alive, flattened, put_back

if TYPE_CHECKING:
    from autoddp.effects.run import Run


def share_buffers(run: Run) -> None:
    """Give all ranks the buffers that rank 0 has on its accelerator.

    Accelerators add up in an order of their own: what ranks compute alike differs in its last bits.
    Gradients are averaged, so weights stay alike. Buffers that are updated outside of autograd (a
    codebook's moving average, the statistics of a BatchNorm that runs whole) would drift apart.
    """
    group = run.group
    if not group.kind or run.options.batchnorm != "exact" or accelerator.capturing():
        return
    with run.view.context.within(Code.PLAIN), torch.no_grad():
        found = dict(_floats(run)) if run.view.recent_modules else {}
        if not found:
            return
        prints = Fingerprint()
        for name, x in found.values():
            prints.add(name, [x])
        if differs := prints.difference(group):
            # by more than rounding: a buffer that nothing was written into, maybe
            run.report.doubt("buffers", "", f"{differs}: {WHY}; rank 0's is taken")
        kinds = list(flattened([x for _, x in found.values()]))
        group.broadcast([flat for _, flat in kinds])
        for some, flat in kinds if group.rank else ():
            put_back(some, flat)


def _floats(run: Run) -> Iterator[tuple[int, tuple[str, Tensor]]]:
    """Yield the buffers of the modules that were called, by id, the same ones on all ranks."""
    for module in alive(run.group, run.view.recent_modules):
        for name, x in module.named_buffers():
            dense = x.layout is torch.strided and x.is_floating_point()
            if dense and x.device.type == run.group.kind:
                yield id(x), (f"buffer {name} of {type(module).__name__}", x)
