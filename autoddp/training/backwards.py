"""One backward of the script: which gradients are averaged, and by what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from autoddp import torch_internals
from autoddp.comm.position import BACKWARD
from autoddp.own_hooks import own_hooks
from autoddp.own_operations import unseen
from autoddp.patching import Call
from autoddp.torch_internals import dispatch_depth
from autoddp.training.late_averaging import PendingGradients
from autoddp.training.leaves import Leaves, gradient_of, leaves_of
from autoddp.training.replica import Replica, Replicas
from autoddp.view import work
from autoddp.view.redistribute import MeanGradient, mean_over_ranks
from autoddp.view.rules.autograd import listed
from autoddp.view.state import View


def named(call: Call) -> dict[str, Any]:
    """Return the arguments of a backward by name; inputs, if any, as a list."""
    given = dict(call.named)
    inputs = given.pop("inputs", None)
    if isinstance(inputs, GradientEdge):
        given["inputs"] = [inputs]
    elif inputs is not None:
        given["inputs"] = listed(inputs.values() if isinstance(inputs, dict) else inputs)
    return given


class Backwards:
    """The backwards of one rank: gradients are averaged when the outermost ends.

    If `late`, all but a round's last leave their gradients pending. A round is the backwards to one
    set of leaves from one without gradients to the next such.

    Attributes:
        depth: The number of backwards that run: a checkpoint calls one inside another.
        hidden: The parameters of the inner ones, which the outer graph does not show, by id.
        alone: Whether what runs averages nothing, since each rank computes whole batches.
    """

    def __init__(self, view: View, late: bool) -> None:
        self.view, self.replicas, self.late = view, Replicas(view), late
        self.pending = PendingGradients(self.replicas, view.context)
        self.depth, self.alone = 0, False
        self.hidden: dict[int, Tensor] = {}

    def run(self, plain: Any, tops: list[Tensor], given: dict[str, Any]) -> list[Tensor]:
        """Run a backward from these tensors, with its other arguments, and average.

        Returns:
            The leaves whose gradients it has changed; none inside another one, which averages.
        """
        leaves = leaves_of(tops, self.view.order)
        if self.depth:
            self.hidden |= {id(x): x for x in leaves.all if isinstance(x, nn.Parameter)}
            plain(tops, **given)
            return []
        self.depth += 1
        try:
            self._run(plain, tops, given, leaves)
            return [*leaves.all, *self.hidden.values()]
        finally:
            self.depth -= 1
            self.hidden.clear()

    def run_plain(
        self, plain: Any, args: Any = (), kwargs: Any = None, inner: list[Tensor] | None = None
    ) -> Any:
        """Run a backward without averaging, for ranks that are alike.

        Gradients that are pending remain so: the mean of a sum of both kinds is the true one. The
        leaves of backwards inside it are added to `inner`.
        """
        self.depth, self.alone = 1, True
        try:
            return plain(*args, **kwargs or {})
        finally:
            self.depth, self.alone = 0, False
            if inner is not None:
                inner.extend(self.hidden.values())
            self.hidden.clear()

    def _run(self, plain: Any, tops: list[Tensor], given: dict[str, Any], leaves: Leaves) -> None:
        inputs, graph = given.get("inputs"), given.get("create_graph")
        try:
            if inputs is not None or graph or not leaves.dense:
                plain(tops, **given)
                found = {id(leaf): leaf for leaf in leaves.all} | self.hidden
            else:
                self._average_dense(plain, tops, given, leaves)
                found = {id(leaf): leaf for leaf in leaves.others} | self.hidden
                for leaf in leaves.dense if found else ():
                    found.pop(id(leaf), None)
        except BaseException:  # what it has added is this rank's, which the script may go on with
            if self._may_pend():
                self.pending.add(leaves.dense)
            raise
        if inputs is not None:
            found = {id(x): x for x in inputs if id(x) in found}
        self.replicas.average(self.view.order.sorted(found.values()), _mean if graph else None)

    def _average_dense(
        self, plain: Any, tops: list[Tensor], given: dict[str, Any], leaves: Leaves
    ) -> None:
        """Run a backward without the reducer if it may be late, else with it."""
        if self._may_be_late(self.replicas.of(leaves), leaves):
            plain(tops, **given)
            self.pending.add(leaves.dense)
        else:
            self.reduce(plain, tops, given, leaves)
            if self.pending.leaves:  # not before: a hook may have read one meanwhile
                self.pending.drop(leaves.dense)

    def _may_be_late(self, replica: Replica, leaves: Leaves) -> bool:
        """Count a backward; return whether its gradients may be averaged later.

        It expects as many as in the round before. A gradient that is there and not pending may be
        in the script's hands already, where nothing shows that it is read.
        """
        if gradient_of(leaves.dense[0]) is None:
            replica.expected, replica.count = replica.count, 0
        replica.count += 1
        return (
            self.late
            and replica.count < replica.expected
            and not leaves.others
            and self._may_pend()
            and all(id(x) in self.pending.leaves or gradient_of(x) is None for x in leaves.dense)
        )

    def _may_pend(self) -> bool:
        """Return whether gradients may wait to be read; compiled code reads past any property."""
        return self.view.context.on_script_thread() and not torch_internals.compiles()

    def reduce(self, plain: Any, tops: list[Tensor], given: dict[str, Any], leaves: Leaves) -> None:
        """Run a backward with its reducer; average at its end if a placement is to be chosen yet.

        A reducer takes a second to make in a process that has not imported Dynamo, as DDP does, and
        whole batches need none.

        The reducer gives zeros to leaves that no gradient has reached. These are removed: an
        optimizer skips a parameter without a gradient, and decays one whose gradient is zero.
        """
        replica, without = self.replicas.of(leaves), list[Tensor]()
        try:
            with self._at_common_point(replica):
                # modes see what a reducer computes, and it may see a leaf once
                if self.view.undecided or dispatch_depth() or leaves.nests:
                    plain(tops, **given)
                    without = _with_zeros(leaves.dense)
                    there = (gradient_of(leaf) for leaf in leaves.dense)
                    self.replicas.average_dense([g for g in there if g is not None])
                else:
                    with _without_gradient(tops, leaves.dense) as without:
                        self.replicas.arm(replica)
                        plain(tops, **given)
        except BaseException:
            self.replicas.drop(replica)
            raise
        _drop_zeros(without)

    @contextmanager
    def _at_common_point(self, replica: Replica) -> Iterator[None]:
        """Run a backward at a point of the program where ranks wait for each other."""
        view = self.view
        with view.group.together("backward", replica.leaves.dense[0], BACKWARD) as place:
            view.group.collective_check.note(place.stamp)
            before = view.work.turn(work.BACKWARD)
            try:
                yield
            finally:
                view.work.turn(before)


@unseen
def _drop_zeros(leaves: list[Tensor]) -> None:
    """Remove the gradients of leaves that are zero, by one copy to the host, as DDP makes one."""
    given = [(leaf, g) for leaf in leaves if (g := gradient_of(leaf)) is not None]
    if given:
        where = given[0][1].device
        other = torch.stack([g.any().to(where) for _, g in given]).tolist()
        for (leaf, _), reached in zip(given, other, strict=True):
            if not reached:
                leaf.grad = None


@unseen
def _with_zeros(leaves: list[Tensor]) -> list[Tensor]:
    """Give zeros to the leaves that no gradient has reached, and return these."""
    without = [leaf for leaf in leaves if gradient_of(leaf) is None]
    for leaf in without:
        leaf.grad = torch.zeros_like(leaf)
    return without


@contextmanager
def _without_gradient(tops: list[Tensor], leaves: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield a list of the leaves that no gradient has reached, filled by the backward inside.

    The engine runs callbacks in the order in which they are queued: ours is queued at the first
    root, and the reducer's, which writes the zeros, behind it.
    """
    without: list[Tensor] = []

    def note() -> None:
        without[:] = without or [leaf for leaf in leaves if gradient_of(leaf) is None]

    def first(_: object) -> None:
        torch_internals.after_backward(note)

    # of nodes where there are some: that of tensors is patched, for hooks of the script
    with own_hooks():
        hooks = [
            top.register_hook(first) if top.grad_fn is None else top.grad_fn.register_prehook(first)
            for top in tops
            if top.requires_grad
        ]
    try:
        yield without
    finally:
        for hook in hooks:
            hook.remove()


def _mean(gradient: Tensor, group: Any) -> Tensor:
    """Return the mean over ranks; what comes back is the mean, too: ranks may weigh their losses.

    The mean is outside: what a function returns as a view of its input refuses to be detached.
    """
    return mean_over_ranks(MeanGradient.apply(gradient, group), group)
