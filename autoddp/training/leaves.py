"""The leaves that a backward leads to, found by a walk over the graph at every backward.

A set of leaves that is kept from one backward to the next would miss those that come later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from autoddp.patching.kept import KeptProperty
from autoddp.view.order import Order


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

    @KeptProperty
    def key(self) -> tuple[tuple[int, int], ...]:
        """Return what a reducer is made for; `model.to(...)` gives a leaf another accumulator."""
        return tuple((id(leaf), id(self.accumulators[id(leaf)])) for leaf in self.dense)


SPARSE = ("EmbeddingBackward0", "EmbeddingBagBackward0")
REENTRANT = "CheckpointFunctionBackward"
LEAF = "AccumulateGrad"


def leaves_of(roots: Iterable[Tensor], one_order: Order) -> Leaves:
    """Walk the graph for its leaves, by kind; every rank finds the same ones, in the same order."""
    found, unlike = _walked(roots)
    leaves = Leaves(recomputes=0 in unlike)
    leaves.accumulators = {id(node.variable): node for node in found}
    ordered = one_order.sorted([node.variable for node in leaves.accumulators.values()])
    kind = _most(ordered)
    for leaf in ordered:
        plain = (
            leaf.device.type == kind
            and leaf.is_floating_point()
            and leaf.layout is torch.strided
            and id(leaf) not in unlike
        )
        (leaves.dense if plain else leaves.others).append(leaf)
    return leaves


def _walked(roots: Iterable[Tensor]) -> tuple[list[Any], set[int]]:
    """Return the accumulators of a graph, as they are met, each once.

    Also the ids of leaves whose gradients are sparse, 0 among them if some recompute.
    """
    found: list[Any] = []
    unlike: set[int] = set()
    seen: set[Any] = {None}
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
                found.append(node)
            continue
        following = node.next_functions
        if name in SPARSE and getattr(node, "_saved_sparse", False):
            unlike.add(id(getattr(following[0][0], "variable", None)))
        if name == REENTRANT:
            unlike.add(0)
        todo += [each for each, _ in following if each not in seen]
    return found, unlike


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
