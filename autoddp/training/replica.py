"""The averaging of gradients over ranks: torch's DistributedDataParallel, armed at backward.

There is one `DistributedDataParallel` for each set of leaves that a backward leads to. It owns the
script's own parameters, its forward is the identity on the losses, and its reducer averages `.grad`
in buckets while the backward runs: the same buckets and overlap as written by hand. The mean is
exact for split and for replicated work, and idempotent, so accumulation needs no care.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autoddp import torch_internals
from autoddp.comm.accelerator import CPU
from autoddp.comm.group import MIN, Group
from autoddp.comm.together import told_by_launcher
from autoddp.training.fingerprint import Fingerprint
from autoddp.training.leaves import Leaves
from autoddp.training.shared_gradients import BucketAveraging, averaged

KEPT = 4  # reducers that stay, the ones used last; each costs about a copy of its gradients
ROOM = 1 << 30  # bytes of gradients of those on an accelerator, beyond the one used last


class Anchor(nn.Module):
    """A module that owns some leaves, and whose forward is the identity."""

    def __init__(self, leaves: list[Tensor]) -> None:
        super().__init__()
        for number, leaf in enumerate(leaves):
            self._parameters[f"leaf{number}"] = leaf  # type: ignore[assignment]  # any leaf will do

    def __call__(self, *losses: Tensor) -> tuple[Tensor, ...]:
        return losses  # nor do hooks for all modules see this one


def flattened(tensors: list[Tensor]) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield the tensors of each dtype and device, and their elements in one flat tensor."""
    kinds: dict[Any, list[Tensor]] = {}
    for x in tensors:
        kinds.setdefault((x.dtype, x.device), []).append(x)
    for some in kinds.values():
        yield some, torch.cat([x.reshape(-1) for x in some])


def put_back(tensors: list[Tensor], flat: Tensor) -> None:
    """Write into tensors what `flattened` has made of them; for autograd they are what they were.

    A graph that has saved one may still be walked.
    """
    for x, new in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
        x.data.copy_(new.view_as(x))


def alive(group: Group, references: Iterable[Callable[[], Any]]) -> list[Any]:
    """Return what weak references lead to on all ranks: each frees garbage when it likes."""
    found = [reference() for reference in references]
    there = torch.tensor([each is not None for each in found], device=CPU).long()
    everywhere = group.all_reduce(there, MIN).tolist()
    return [each for each, here in zip(found, everywhere, strict=True) if here]


class Kept(NamedTuple):
    """A reducer, the leaves that it serves, and what its hook notes, if that is ours."""

    replica: DistributedDataParallel
    leaves: Leaves
    averaging: BucketAveraging | None


class Replicas:
    """The reducers of one rank, one for each set of leaves.

    Attributes:
        dropped: Counts the reducers that are not kept any more.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        # alive, so that ids stay theirs
        self._kept: dict[Any, Kept] = {}
        self.dropped = 0

    def arm(self, leaves: Leaves, roots: list[Tensor]) -> BucketAveraging | None:
        """Have the reducer of the dense leaves wait for their gradients in the next backward.

        Returns:
            What notes the leaves without a gradient; None if nothing does.
        """
        known = self._kept.pop(leaves.key, None)
        replica, averaging = self._made(leaves.dense) if known is None else known[::2]
        self._kept[leaves.key] = Kept(replica, leaves, averaging)  # now the one used last
        while len(self._kept) > KEPT or (len(self._kept) > 1 and self._held() > ROOM):
            del self._kept[next(iter(self._kept))]
            self.dropped += 1
        # now and then ranks agree upon the buckets
        with torch.enable_grad(), told_by_launcher(self.group):
            if known is None:
                replica.forward(*roots)  # past hooks of the script's for all modules
            else:
                torch_internals.arm(replica)
        return averaging

    def _made(self, leaves: list[Tensor]) -> tuple[DistributedDataParallel, BucketAveraging | None]:
        self.compare(leaves)
        anchor, group = Anchor(leaves), self.group
        with told_by_launcher(group):
            replica = torch_internals.replica_of(anchor, group.pg)
        shared = group.gradient_memory is not None and leaves[0].is_cpu
        averaging = BucketAveraging(group, leaves) if shared else None
        if averaging is not None:
            replica.register_comm_hook(averaging, averaged)
        return replica, averaging

    def _held(self) -> int:
        """Count bytes of accelerators' memory that reducers hold, beyond the one used last."""
        sizes = [
            x.nbytes
            for kept in [*self._kept.values()][:-1]
            for x in kept.leaves.dense
            if not x.is_cpu
        ]
        return sum(sizes)

    def keeps(self, leaves: Leaves) -> bool:
        """Return whether there is a reducer of these leaves."""
        return leaves.key in self._kept

    def drop(self, leaves: Leaves) -> None:
        """Drop the reducer of a backward that raised: half-way, it refuses every later forward."""
        self.dropped += self._kept.pop(leaves.key, None) is not None

    def compare(self, leaves: list[Tensor]) -> None:
        """Compare leaves over ranks: equal, since all run the same script on the same values.

        Raises:
            Disagreement: They are not equal.
        """
        found = Fingerprint()
        for number, leaf in enumerate(leaves):
            found.add(f"parameter {number} of {len(leaves)}, of shape {tuple(leaf.shape)},", [leaf])
        # accelerators add up in an order of their own: what is computed there differs in last bits
        exact = all(leaf.device.type == "cpu" for leaf in leaves)
        found.compare(self.group, exact=exact or torch.are_deterministic_algorithms_enabled())

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

    def average_dense(self, grads: list[Tensor]) -> None:
        """Average gradients in place, in one all-reduce for each dtype and device."""
        for some, flat in flattened([grad.detach() for grad in grads]):
            put_back(some, self.group.all_reduce(flat).div_(self.group.size))

    def average_sparse(self, grad: Tensor) -> Tensor:
        """Return the mean of a sparse gradient: every rank's entries, one after the other."""
        grad = grad.coalesce()
        counts = self.group.all_gather(torch.tensor([grad._nnz()], device=CPU)).flatten().tolist()

        def of_all(mine: Tensor, dim: int) -> Tensor:
            shape = [*mine.shape[:dim], max(counts), *mine.shape[dim + 1 :]]
            padded = mine.new_zeros(shape)
            padded.narrow(dim, 0, grad._nnz()).copy_(mine)
            found = zip(self.group.all_gather(padded), counts, strict=True)
            return torch.cat([each.narrow(dim, 0, count) for each, count in found], dim)

        # as torch's kernels do: `torch.sparse_coo_tensor` of torch 2.11 warns, whatever is said of
        # checks
        mean: Tensor = torch_internals.sparse_of_parts(
            *(grad.sparse_dim(), grad.dense_dim(), grad.shape),
            *(of_all(grad.indices(), 1), of_all(grad.values(), 0) / self.group.size),
            dtype=grad.dtype,
            layout=grad.layout,
            device=grad.device,
        )
        return mean.coalesce()
