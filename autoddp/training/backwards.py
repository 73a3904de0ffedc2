"""One backward of the script: who averages which gradients, also of leaves that nothing shows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from autoddp import torch_internals
from autoddp.training.gradient_access import gradient_of, without_gradient
from autoddp.training.leaves import Leaves, leaves_of
from autoddp.training.replica import Replicas
from autoddp.view.order import Order
from autoddp.view.redistribute import Mean, MeanGradient
from autoddp.view.rules.autograd import listed

NAMES = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")


def named(args: Any, kwargs: Any) -> tuple[dict[str, Any], str]:
    """Return the arguments of a backward by name, and the name by which seeds are given.

    They are passed on by that name: torch has something to say of the old one, and of both.
    Inputs, if any, are listed: an iterator would have none for a second look.
    """
    given = dict(zip(NAMES, args, strict=False)) | kwargs
    inputs = given.pop("inputs", None)
    if isinstance(inputs, GradientEdge):
        given["inputs"] = [inputs]
    elif inputs is not None:
        given["inputs"] = listed(inputs.values() if isinstance(inputs, dict) else inputs)
    return given, "grad_tensors" if given.get("grad_variables") is None else "grad_variables"


class Backwards:
    """The backwards of one rank: gradients are averaged when the outermost ends.

    Attributes:
        depth: How many go on: what recomputes inside a backward may call another one.
        hidden: Leaves of these inner ones, which hide from the graph, by id.
    """

    def __init__(
        self,
        replicas: Replicas,
        order: Order,
        around: Callable[[Tensor], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.replicas, self.order = replicas, order
        self.around = around  # a backward that a reducer, of this leaf among others, serves
        self.depth = 0
        self.hidden: dict[int, Tensor] = {}

    def inner(self, tops: list[Tensor]) -> None:
        """Note the leaves of a backward inside another one; its end averages them."""
        # among them the inputs of what is recomputed
        leaves = leaves_of(tops, self.order).all
        self.hidden.update({id(leaf): leaf for leaf in leaves if isinstance(leaf, nn.Parameter)})

    def outermost(self, plain: Any, tops: list[Tensor], given: dict[str, Any]) -> list[Tensor]:
        """Run a backward from these tensors on, with its other arguments, and average.

        Returns:
            The leaves that it has led to.
        """
        self.depth += 1
        try:
            leaves = self._run(plain, tops, given)
            return [*leaves.all, *self.hidden.values()]
        finally:
            self.depth -= 1
            self.hidden.clear()

    def _run(self, plain: Any, tops: list[Tensor], given: dict[str, Any]) -> Leaves:
        leaves = leaves_of(tops, self.order)
        inputs = given.get("inputs")
        by_hand = inputs is not None or given.get("create_graph") or leaves.recomputes
        if by_hand or not leaves.dense:
            plain(tops, **given)
            self._average(leaves, inputs, given.get("create_graph"))
            return leaves
        self._reduce(plain, tops, given, leaves)
        if leaves.others:
            self.replicas.average(leaves.others)
        if self.hidden:
            covered = {id(leaf) for leaf in leaves.dense}
            self.replicas.average(leaf for key, leaf in self.hidden.items() if key not in covered)
        return leaves

    def _reduce(
        self, plain: Any, tops: list[Tensor], given: dict[str, Any], leaves: Leaves
    ) -> None:
        """Run a backward with its reducer.

        It gives zeros to leaves which no gradient has reached. These are taken back: a function's
        backward may give none, or a hook take it away; an optimizer leaves alone what has none, and
        lets what has zeros decay.
        """
        try:
            averaging = self.replicas.arm(leaves, tops)
            with self.around(leaves.dense[0]):
                if averaging is None:
                    without = _noting(plain, tops, given, leaves.dense)
                else:
                    plain(tops, **given)
                    without = averaging.without
        except BaseException:
            self.replicas.drop(leaves)
            raise
        for leaf in without:
            gradient = gradient_of(leaf)
            if gradient is not None and not gradient.any():
                leaf.grad = None

    def _average(self, leaves: Leaves, inputs: Any, create_graph: Any) -> None:
        found = {id(leaf): leaf for leaf in leaves.all} | self.hidden
        if inputs is not None:
            wanted = {id(x) for x in inputs}
            found = {key: leaf for key, leaf in found.items() if key in wanted}
        leaves_found = self.order.sorted(found.values())
        self.replicas.average(leaves_found, _mean if create_graph else None)


def _noting(
    plain: Any, tops: list[Tensor], given: dict[str, Any], leaves: list[Tensor]
) -> list[Tensor]:
    """Run a backward; return the leaves which no gradient has reached.

    The reducer's work ends in the engine, behind what is noted from the first root on.
    """
    without: list[Tensor] = []

    def note() -> None:
        without[:] = without or without_gradient(leaves)

    hooks = [
        top.register_hook(lambda _: torch_internals.after_backward(note))
        for top in tops
        if top.requires_grad
    ]
    try:
        plain(tops, **given)
    finally:
        for hook in hooks:
            hook.remove()
    return without


def _mean(gradient: Tensor, group: Any) -> Tensor:
    """Return the mean over ranks; what comes back is the mean, too: ranks may weigh their losses.

    The mean is outside: what a function returns as a view of its input refuses to be detached.
    """
    mean: Tensor = Mean.apply(MeanGradient.apply(gradient, group), group)
    return mean
