"""The averaging of gradients over ranks: torch's DistributedDataParallel, armed at backward.

There is one `DistributedDataParallel` for each set of leaves that a backward leads to. It owns the
script's own parameters, its forward is the identity on the losses, and its reducer averages `.grad`
in buckets while the backward runs: the same buckets and overlap as written by hand. The mean is
exact for split and for replicated work, and idempotent, so accumulation needs no care.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autoddp import torch_internals
from autoddp.comm.accelerator import CPU
from autoddp.comm.group import Group
from autoddp.training import compression
from autoddp.training.fingerprint import Fingerprint
from autoddp.training.shared_gradients import averaged
from autoddp.view.order import Order

KEPT = 4  # reducers that stay, the ones used last; each costs about a copy of its gradients
ROOM = 1 << 30  # bytes of gradients of those on an accelerator, beyond the one used last


class Anchor(nn.Module):
    """A module that owns some leaves, and whose forward is the identity."""

    def __init__(self, leaves: list[Tensor]) -> None:
        super().__init__()
        for number, leaf in enumerate(leaves):
            self._parameters[f"leaf{number}"] = leaf  # type: ignore[assignment]  # any leaf will do

    def forward(self, *losses: Tensor) -> tuple[Tensor, ...]:
        return losses


@dataclass
class Leaves:
    """Leaves that a backward leads to, in an order that every rank shares."""

    dense: list[Tensor] = field(default_factory=list)
    # sparse or complex gradients, another kind of device
    others: list[Tensor] = field(default_factory=list)
    recomputes: bool = False  # a reentrant checkpoint hides more leaves
    # the graph's node of each leaf, by the leaf's id
    accumulators: dict[int, Any] = field(default_factory=dict)

    @property
    def all(self) -> list[Tensor]:
        return self.dense + self.others

    @cached_property
    def key(self) -> tuple[tuple[int, int], ...]:
        """Return what a reducer is made for; `model.to(...)` gives a leaf another accumulator."""
        return tuple((id(leaf), id(self.accumulators[id(leaf)])) for leaf in self.dense)


SPARSE = ("EmbeddingBackward0", "EmbeddingBagBackward0")
REENTRANT = "CheckpointFunctionBackward"
LEAF = "AccumulateGrad"


def leaves_of(roots: Iterable[Tensor], one_order: Order) -> Leaves:
    """Walk the graph for its leaves; every rank finds the same ones, in the same order."""
    found, sparse = Leaves(), set()
    seen: set[Any] = {None}
    order: dict[int, Tensor] = {}
    todo: list[Any] = [root.grad_fn or _accumulator(root) for root in roots]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        name = type(node).__name__
        if name == LEAF:
            variable = node.variable
            # one frozen since the forward gets no gradient
            if variable.requires_grad and not hasattr(variable, "_autoddp_rows"):
                order[id(variable)] = variable
                found.accumulators[id(variable)] = node
            continue
        if name in SPARSE and getattr(node, "_saved_sparse", False):
            weight = getattr(node.next_functions[0][0], "variable", None)
            sparse.add(id(weight))
        found.recomputes |= name == REENTRANT
        for following, _ in node.next_functions:
            todo.append(following)
    leaves = one_order.sorted(order.values())
    kind = _most(leaves)
    for leaf in leaves:
        plain = (
            leaf.device.type == kind
            and leaf.is_floating_point()
            and leaf.layout is torch.strided
            and id(leaf) not in sparse
        )
        (found.dense if plain else found.others).append(leaf)
    return found


def _most(leaves: Iterable[Tensor]) -> str:
    """Return the kind of device that holds most of the leaves, by bytes.

    A reducer serves one kind; the rest is averaged by itself.
    """
    sizes: dict[str, int] = {}
    for leaf in leaves:
        sizes[leaf.device.type] = sizes.get(leaf.device.type, 0) + leaf.nbytes
    return max(sizes, key=lambda kind: (sizes[kind], kind), default="cpu")


def _accumulator(leaf: Tensor) -> Any:
    """Return the accumulator of a leaf, since a root may be one itself."""
    view = leaf.view_as(leaf).grad_fn
    return view.next_functions[0][0] if view is not None else None


def flattened(tensors: list[Tensor]) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield the tensors of each dtype and device, and their elements in one flat tensor."""
    kinds: dict[Any, list[Tensor]] = {}
    for x in tensors:
        kinds.setdefault((x.dtype, x.device), []).append(x)
    for some in kinds.values():
        yield some, torch.cat([x.reshape(-1) for x in some])


class Replicas:
    """The reducers of one rank, one for each set of leaves."""

    def __init__(self, group: Group, compress: str = "none") -> None:
        self.group, self.compress = group, compress
        # alive, so that ids stay theirs
        self._kept: dict[Any, tuple[DistributedDataParallel, Leaves]] = {}

    def arm(self, leaves: Leaves, roots: list[Tensor]) -> None:
        """Have the reducer of the dense leaves wait for their gradients in the next backward."""
        key = leaves.key
        replica, noted = self._kept.pop(key, (None, leaves))
        ready = replica is not None
        if replica is None:
            self.compare(leaves.dense)
            replica = torch_internals.replica_of(Anchor(leaves.dense), self.group.pg)
            shared = self.group.gradient_memory is not None and leaves.dense[0].is_cpu
            if shared and self.compress == "none":
                replica.register_comm_hook(self.group, averaged)
            compression.register(replica, self.group.pg, self.compress)
        self._kept[key] = replica, noted  # now the one used last
        while len(self._kept) > KEPT or (len(self._kept) > 1 and self._held() > ROOM):
            del self._kept[next(iter(self._kept))]
        with torch.enable_grad():
            if ready:
                torch_internals.arm(replica)
            else:
                replica(*roots)

    def _held(self) -> int:
        """Count bytes of accelerators' memory that reducers hold, beyond the one used last."""
        sizes = [
            x.nbytes
            for _, known in [*self._kept.values()][:-1]
            for x in known.dense
            if not x.is_cpu
        ]
        return sum(sizes)

    def keeps(self, leaves: Leaves) -> bool:
        """Return whether there is a reducer of these leaves."""
        return leaves.key in self._kept

    def drop(self, leaves: Leaves) -> None:
        """Drop the reducer of a backward that raised: half-way, it refuses every later forward."""
        self._kept.pop(leaves.key, None)

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
            self.group.all_reduce(flat).div_(self.group.size)
            for g, mean in zip(some, flat.split([g.numel() for g in some]), strict=True):
                g.copy_(mean.view_as(g))

    def average_sparse(self, grad: Tensor) -> Tensor:
        """Return the mean of a sparse gradient: every rank's entries, one after the other."""
        grad = grad.coalesce()
        counts = self.group.all_gather(torch.tensor([grad._nnz()], device=CPU)).flatten().tolist()
        room = max(counts)
        indices, values = grad.indices(), grad.values()
        all_indices = indices.new_zeros((indices.shape[0], room))
        all_values = values.new_zeros((room, *values.shape[1:]))
        all_indices[:, : grad._nnz()], all_values[: grad._nnz()] = indices, values
        gathered_i, gathered_v = (
            self.group.all_gather(all_indices),
            self.group.all_gather(all_values),
        )
        cut_i = torch.cat([i[:, :n] for i, n in zip(gathered_i, counts, strict=True)], 1)
        cut_v = torch.cat([v[:n] for v, n in zip(gathered_v, counts, strict=True)])
        # as torch's kernels do: `torch.sparse_coo_tensor` of torch 2.11 warns, whatever is said of
        # checks
        make = torch_internals.sparse_of_parts
        kind = {"dtype": grad.dtype, "layout": grad.layout, "device": grad.device}
        dims = grad.sparse_dim(), grad.dense_dim()
        mean: Tensor = make(*dims, grad.shape, cut_i, cut_v / self.group.size, **kind)
        return mean.coalesce()
