"""The leaves of a backward, found by a walk over the graph at every backward.

A set of leaves that is kept from one backward to the next would miss new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge

from autoddp.torch_internals import no_torch_function
from autoddp.view.order import Order
from autoddp.view.redistribute import Boundary, Renamed
from autoddp.view.table import stands_at

# torch's own getters, setters and deleters: ours may stand there
GRAD: Any = torch.Tensor.grad
DATA: Any = torch.Tensor.data


@dataclass
class Leaves:
    """The leaves of a backward, in the same order on every rank.

    Attributes:
        dense: Leaves that a reducer averages.
        others: Leaves with sparse or complex gradients, or on another kind of device.
        key: What a reducer is made for: the graph's nodes of the dense leaves, of which
            `model.to(...)` gives a leaf another one.
        nests: Whether a function is in the graph whose backward may run one inside, to the same
            leaves, as a checkpoint's does.
    """

    dense: list[Tensor] = field(default_factory=list)
    others: list[Tensor] = field(default_factory=list)
    key: tuple[Any, ...] = ()
    nests: bool = False

    @property
    def all(self) -> list[Tensor]:
        return self.dense + self.others


SPARSE = ("EmbeddingBackward0", "EmbeddingBagBackward0")
LEAF = "AccumulateGrad"


def gradient_of(leaf: Tensor) -> Tensor | None:
    """Return the gradient as this rank has it, whether averaged or not."""
    with no_torch_function():
        found: Tensor | None = GRAD.__get__(leaf)
    return found


def leaves_of(roots: Iterable[Tensor], one_order: Order) -> Leaves:
    """Walk the graph for its leaves, by kind; every rank finds the same ones, in the same order."""
    leaves = Leaves()
    found, sparse = _walked(roots, leaves)
    accumulators = {id(node.variable): node for node in found}
    ordered = one_order.sorted([node.variable for node in accumulators.values()])
    # a reducer serves one kind of device
    kind = next((leaf.device.type for leaf in ordered if not leaf.is_cpu), "cpu")
    for leaf in ordered:
        plain = (
            leaf.device.type == kind
            and leaf.is_floating_point()
            and leaf.layout is torch.strided
            and id(leaf) not in sparse
        )
        (leaves.dense if plain else leaves.others).append(leaf)
    leaves.key = tuple(accumulators[id(leaf)] for leaf in leaves.dense)
    return leaves


def leaves_without_rows(roots: Iterable[Tensor]) -> list[Tensor] | None:
    """Return the leaves, in no order; None if a step leads from rows to what all ranks have."""
    found: list[Tensor] = []
    todo: list[Any] = [
        root.grad_fn or get_gradient_edge(root).node for root in roots if root.requires_grad
    ]
    seen = {None, *todo}
    for node in todo:  # grows meanwhile
        if issubclass(getattr(node, "_forward_cls", Tensor), Boundary):
            return None
        for following, _ in node.next_functions:
            if following not in seen:
                seen.add(following)
                todo.append(following)
        if type(node).__name__ == LEAF and node.variable.requires_grad:
            found.append(node.variable)
    return found


def _walked(roots: Iterable[Tensor], leaves: Leaves) -> tuple[list[Any], set[int]]:
    """Return a graph's accumulators, and the ids of leaves with sparse gradients; set `nests`."""
    found: list[Any] = []
    sparse: set[int] = set()
    seen: set[Any] = {None}
    todo: list[Any] = [
        root.grad_fn or get_gradient_edge(root).node for root in roots if root.requires_grad
    ]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        name = type(node).__name__
        if name == LEAF:
            variable = node.variable
            # one frozen since the forward gets no gradient, and a gradient on meta has no numbers
            has_gradient = variable.requires_grad and not variable.is_meta
            if has_gradient and not hasattr(variable, "_autoddp_rows"):
                found.append(node)
            continue
        following = node.next_functions
        leaves.nests = leaves.nests or (isinstance(node, BackwardCFunction) and _may_nest(node))
        if name in SPARSE and getattr(node, "_saved_sparse", False):
            sparse.add(id(getattr(following[0][0], "variable", None)))
        todo += [each for each, _ in following if each not in seen]
    return found, sparse


def _may_nest(node: Any) -> bool:
    """Return whether a function's backward may run another one; ours and compiled ones do not."""
    kind = node._forward_cls
    ours = issubclass(kind, (Boundary, Renamed))
    return not ours and not kind.__module__.startswith("torch._functorch")


def with_setter(plain: Any, write: Callable[[Any, Any], Any]) -> property:
    """Return `Tensor.data` as a property; `write` returns the value to set.

    Args:
        plain: What stands there: torch's own, or such a property.
        write: Is called with the tensor and the value; NotImplemented if all is done.
    """
    write_plain = DATA.__set__ if plain is DATA else plain.__set__

    def set(x: Any, value: Any) -> None:
        value = write(x, value)
        if value is not NotImplemented:
            write_plain(x, value)

    return stands_at(DATA, property(DATA.__get__, set))
