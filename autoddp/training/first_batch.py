"""The comparison of the nodes' data: the first batch of each loader is the same on all of them.

Each rank reads its rows from its own node's disk. Where a file there is another one, all would
train together on a mixture of both, and nothing that is compared later would show it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autoddp.comm.accelerator import CPU
from autoddp.comm.context import Code
from autoddp.comm.group import MIN
from autoddp.training.fingerprint import Fingerprint
from autoddp.training.sharing.snapshot import Snapshot
from autoddp.view.generators import Generators

if TYPE_CHECKING:
    from autoddp.effects.run import Run

SECONDS = 0.5  # in which rows of a batch are fetched to be compared; one is, however long it takes
WHY = "the nodes read other data; give all of them the same files"


class FirstBatches:
    """The loaders of a job on several nodes whose first batches were compared."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def of(self, loader: Any, where: str) -> FirstBatch | None:
        """Return what compares the loader's first batch; None where it is not to be compared."""
        world = self.run.world
        if world.local_world_size == world.world_size or loader in self.seen:
            return None
        if not getattr(loader, "in_order", True):
            return None
        return FirstBatch(self, loader, where)


class FirstBatch:
    """The first batch of one loader, with the loader's place in words."""

    def __init__(self, job: FirstBatches, loader: Any, where: str) -> None:
        self.seen, self.run = job.seen, job.run
        self.loader, self.where = loader, where

    def compare_rows(self, indices: Sequence[Any], known: bool) -> None:
        """Compare rows of a batch of which each rank has fetched its own; all ranks call this.

        Args:
            indices: Those of all rows of the batch.
            known: Whether it is certain that the data set draws nothing and keeps no state.

        Raises:
            Disagreement: Two nodes have other rows there.
        """
        rows, group = self._fetched(indices, known), self.run.group
        count = int(group.all_reduce(torch.tensor([len(rows)], device=CPU), MIN).item())
        self._compare((f"row {n} of its first batch", rows[n]) for n in range(count))

    def compare(self, leaves: Iterable[Any]) -> None:
        """Compare a batch that a rank of each node, or each rank, has loaded; all call this.

        Raises:
            Disagreement: Two nodes have other batches.
        """
        self._compare([("its first batch", _numbers(leaves))])

    def _compare(self, parts: Iterable[tuple[str, list[Tensor]]]) -> None:
        self.seen.add(self.loader)
        found, dataset = Fingerprint(), self.loader.dataset
        if isinstance(dataset, Sized):
            found.add_number("the length of its data set", len(dataset))
        with self.run.view.context.within(Code.PLAIN):
            for name, tensors in parts:
                found.add(name, tensors)
            found.compare(self.run.group, self.where, self.run.view.report.strict, WHY)

    def _fetched(self, indices: Sequence[Any], known: bool) -> list[list[Tensor]]:
        """Fetch rows as one process would not; none of a data set that is not sure to repeat."""
        view, dataset, found = self.run.view, self.loader.dataset, list[list[Tensor]]()
        before, state = Generators(), None if known else Snapshot(dataset=dataset)
        if state is not None and state.refused:
            return []
        until = time.monotonic() + SECONDS
        try:
            with view.context.within(Code.PLAIN), view.trial():
                for index in indices:
                    found.append(_numbers(tree_leaves(dataset[index])))
                    if len(found) == 1 and not _alike(
                        found[0], _numbers(tree_leaves(dataset[index]))
                    ):
                        return []
                    if time.monotonic() > until:
                        break
        except Exception:
            return []  # the script's own pass brings that up, where it does
        finally:
            drew = not before.same(Generators())
            before.put_back()
            changed = state is not None and bool(state.put_back())
        return [] if drew or changed else found


def _numbers(leaves: Iterable[Any]) -> list[Tensor]:
    """Return what of these leaves are numbers, as tensors."""
    found: list[Tensor] = []
    for x in leaves:
        if isinstance(x, (int, float)):
            found.append(torch.tensor([float(x)], dtype=torch.float64, device=CPU))
        elif isinstance(x, Tensor):
            if x.layout is torch.strided and not (x.is_nested or x.is_quantized or x.is_meta):
                found.append(x)
        elif getattr(getattr(x, "dtype", None), "kind", "") in ("b", "i", "u", "f"):
            found.append(torch.as_tensor(x, device=CPU))
    return found


def _alike(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))
