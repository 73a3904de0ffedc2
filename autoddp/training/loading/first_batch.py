"""Comparison of the first batch of each loader between nodes.

Each node reads its own disk. With different files, training would go on with a mixture of both.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autoddp.comm.accelerator import CPU
from autoddp.training.fingerprint import Fingerprint

if TYPE_CHECKING:
    from autoddp.effects.run import Run

WHY = "the nodes read different data; give all of them the same files"


class FirstBatches:
    """The loaders whose first batches were compared between nodes."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def wanted(self, loader: Any) -> bool:
        """Return whether the first batch is to be compared: once, and not in a thread."""
        world, here = self.run.world, self.run.group.context.on_script_thread()
        return here and world.local_world_size < world.world_size and loader not in self.seen

    def compare(self, loader: Any, where: str, batch: Any) -> None:
        """Compare the first batch of a loader, once; the first rank of each node has it whole.

        Raises:
            Disagreement: The batches of two nodes differ.
        """
        if not self.wanted(loader):
            return
        self.seen.add(loader)
        found, dataset = Fingerprint(), loader.dataset
        with self.run.view.context.internal():
            if isinstance(dataset, Sized):
                found.add_number("the length of its data set", len(dataset))
            found.add("its first batch", _numbers(tree_leaves(batch)))
            strict, group = self.run.view.report.strict, self.run.group
            found.compare(group, where, strict, WHY, group.leaders())


def _numbers(leaves: Iterable[Any]) -> Iterable[Tensor]:
    """Yield the numbers among these leaves as tensors."""
    for x in leaves:
        if isinstance(x, (int, float)):
            yield torch.tensor([float(x)], dtype=torch.float64, device=CPU)
        elif isinstance(x, Tensor):
            if x.layout is torch.strided and not (x.is_nested or x.is_quantized or x.is_meta):
                yield x
        elif getattr(getattr(x, "dtype", None), "kind", "") in ("b", "i", "u", "f"):
            yield torch.as_tensor(x, device=CPU)
