"""The averaging of gradients over ranks by torch's DistributedDataParallel, armed at backward.

There is one `DistributedDataParallel` for each set of leaves that a backward leads to. It owns the
script's own parameters, its forward is never called, and its reducer averages `.grad` in buckets
while the backward runs: the same buckets and overlap as written by hand. The mean is exact for
sharded and for replicated work, and idempotent, so accumulation needs no care.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from autoddp import torch_internals
from autoddp.comm.accelerator import CPU
from autoddp.comm.group import Group
from autoddp.comm.position import WAITING
from autoddp.own_operations import unseen
from autoddp.training.fingerprint import Fingerprint
from autoddp.training.leaves import Leaves
from autoddp.view.redistribute import all_gather_rows
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.state import View

KEPT = 4  # reducers, the ones used last; each costs about a copy of its gradients


class Anchor(nn.Module):
    """The owner of a reducer's leaves, whose type tells it from modules of the script."""


def flattened(tensors: list[Tensor]) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield the tensors of each dtype and device, and their elements in one flat tensor."""
    kinds: dict[Any, list[Tensor]] = {}
    for x in tensors:
        kinds.setdefault((x.dtype, x.device), []).append(x)
    for some in kinds.values():
        yield some, torch.cat([x.reshape(-1) for x in some])


def put_back(tensors: list[Tensor], flat: Tensor) -> None:
    """Copy a flat tensor of `flattened` back into its tensors, without a new version of them.

    A graph that has saved one of them may still be walked.
    """
    for x, new in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
        x.data.copy_(new.view_as(x))


@dataclass
class Replica:
    """Leaves whose gradients are averaged together, and what does so.

    Attributes:
        reducer: It is made for the first backward that needs it.
        expected: How many backwards the script accumulated before its last step.
        count: How many it has accumulated since.
    """

    leaves: Leaves
    reducer: DistributedDataParallel | None = None
    expected: int = 0
    count: int = 0


class Replicas:
    """The reducers of one rank, one for each set of leaves, of which the last few are kept."""

    def __init__(self, view: View) -> None:
        self.view, self.group = view, view.group
        self._kept: dict[Any, Replica] = {}  # the one used last comes last

    def of(self, leaves: Leaves) -> Replica:
        """Return the replica of the dense leaves."""
        found = self._kept.pop(leaves.key, None)
        if found is None:
            self.compare(leaves.dense)
            found = Replica(leaves)
        self._kept[leaves.key] = found
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return found

    def arm(self, replica: Replica) -> None:
        """Prepare the reducer for a backward; now and then ranks agree upon its buckets."""
        if replica.reducer is None:
            replica.reducer = self._made(replica.leaves.dense)
        with torch.enable_grad():
            torch_internals.arm(replica.reducer)

    def _made(self, leaves: list[Tensor]) -> DistributedDataParallel:
        group, owner = self.group, Anchor()
        vars(owner)["_parameters"] = {f"leaf{n}": leaf for n, leaf in enumerate(leaves)}
        with group.together("reducer", leaves[0]):
            made = torch_internals.replica_of(owner, group.pg)
        if group.gradient_memory is not None and leaves[0].is_cpu:
            # torch checks the annotations of a hook, and a lambda has none
            made.register_comm_hook(group, lambda group, bucket: averaged(group, bucket.buffer()))
        return made

    def drop(self, replica: Replica) -> None:
        """Drop the reducer of a backward that raised: it cannot be armed again.

        It is armed still, and would reduce in the next backward, too, on the ranks where Python has
        not collected it by then: its C++ part goes at once.
        """
        self._kept.pop(replica.leaves.key, None)
        if replica.reducer is not None:
            parts = vars(replica.reducer)
            del parts["logger"], parts["reducer"]

    @unseen
    def compare(self, leaves: list[Tensor]) -> None:
        """Compare leaves over ranks; all ranks run the same script on the same values.

        Raises:
            Disagreement: They are not equal.
        """
        found = Fingerprint()
        found.add_each(leaves)
        found.compare(self.group)

    def average(self, leaves: Iterable[Tensor], differentiable: Any = None) -> None:
        """Average the `.grad` of leaves that no reducer covers, at once."""
        dense: list[Tensor] = []
        for leaf in leaves:
            grad = leaf.grad
            if grad is None:
                continue
            if differentiable is not None:
                leaf.grad = differentiable(grad, self.group)
            elif grad.layout is torch.strided:
                dense.append(grad)
            else:
                leaf.grad = self.average_sparse(grad)
        self.average_dense(dense)

    @unseen
    def average_dense(self, grads: list[Tensor]) -> None:
        """Average gradients in place, in one all-reduce for each dtype and device."""
        for some, flat in flattened([grad.detach() for grad in grads]):
            put_back(some, self.group.all_reduce(flat).div_(self.group.size))

    @unseen
    def average_sparse(self, grad: Tensor) -> Tensor:
        """Return the mean of a sparse gradient: every rank's entries, one after the other."""
        grad = grad.coalesce()
        counts = self.group.all_gather(torch.tensor([grad._nnz()], device=CPU)).flatten()
        sizes = ShardSizes(self.view, tuple(counts.tolist()))
        indices = all_gather_rows(grad.indices(), sizes, 1)
        values = all_gather_rows(grad.values(), sizes, 0)
        # `torch.sparse_coo_tensor` of torch 2.11 always warns
        mean: Tensor = torch_internals.sparse_of_parts(
            *(grad.sparse_dim(), grad.dense_dim(), grad.shape),
            *(indices, values / self.group.size),
            dtype=grad.dtype,
            layout=grad.layout,
            device=grad.device,
        )
        return mean.coalesce()


def averaged(group: Group, bucket: Tensor) -> Future[Tensor]:
    """Average a bucket of gradients in place, through the shared memory of the node."""
    memory, position = group.gradient_memory, group.position
    assert memory is not None
    with position.at(WAITING, position.now[1]):  # counted as waiting, see `Position`
        memory.all_reduce(bucket, mean=True)
    done: Future[Tensor] = Future()
    done.set_result(bucket)
    return done
