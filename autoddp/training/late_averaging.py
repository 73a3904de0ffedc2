"""Gradients that several backwards add up before a step are averaged once, or when they are read.

A script that accumulates calls backward k times before it steps and drops the gradients. The mean
over ranks of a sum is the sum of the means, so the reducer is armed at the k-th backward alone, as
under DDP's `no_sync`. What the first k - 1 leave in `.grad` is this rank's, and pending: a property
at `Tensor.grad` averages all of them, in one all-reduce, when the script reads one.

Ranks decide alike, since they decide by what the script does: the leaves of its backwards, whether
these have gradients, and when it reads one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from autoddp.comm.context import Context
from autoddp.errors import Disagreement
from autoddp.patching import ABSENT, restore
from autoddp.training.leaves import GRAD, gradient_of
from autoddp.training.replica import Replicas
from autoddp.view.table import stands_at

GRADIENTS = ("grad", "_grad")  # the attributes for the gradient of a tensor


class PendingGradients:
    """The leaves whose gradients are not averaged yet, and the property that averages them.

    The property replaces `Tensor.grad` only while there are such leaves.

    Attributes:
        leaves: These leaves, by id; they are kept alive, so that ids stay theirs.
    """

    def __init__(self, replicas: Replicas, context: Context) -> None:
        self.replicas, self.context = replicas, context
        self.leaves: dict[int, Tensor] = {}
        self._guard = stands_at(GRAD, property(self._get, self._set, self._delete))

    def add(self, leaves: Iterable[Tensor]) -> None:
        """Add those of these leaves that have gradients."""
        self.leaves.update({id(leaf): leaf for leaf in leaves if gradient_of(leaf) is not None})
        if self.leaves:
            for name in GRADIENTS:
                setattr(torch.Tensor, name, self._guard)

    def drop(self, leaves: Iterable[Tensor]) -> None:
        """Forget these leaves, whose gradients are averaged or gone."""
        for leaf in leaves:
            self.leaves.pop(id(leaf), None)
        if not self.leaves:
            for name in GRADIENTS:
                restore(torch.Tensor, name, ABSENT, self._guard)

    def forget(self) -> None:
        """Forget all leaves at the end of the session."""
        self.drop(list(self.leaves.values()))

    def average(self) -> None:
        """Average all pending gradients; every rank calls this at the same point."""
        if not self.leaves:
            return
        leaves = list(self.leaves.values())
        gradients = [gradient_of(leaf) for leaf in leaves]
        self.replicas.average_dense([g for g in gradients if g is not None])
        self.drop(leaves)  # not before: a handler that interrupts and reads averages them itself

    def _get(self, leaf: Tensor) -> Any:
        if id(leaf) in self.leaves:
            self._check()
            self.average()
        return GRAD.__get__(leaf)

    def _set(self, leaf: Tensor, value: Any) -> None:
        GRAD.__set__(leaf, value)
        self.drop([leaf])

    def _delete(self, leaf: Tensor) -> None:
        GRAD.__delete__(leaf)
        self.drop([leaf])

    def _check(self) -> None:
        """Refuse a read that other ranks may not make: this rank would wait forever.

        Raises:
            Disagreement: The other ranks do not read here.
        """
        context = self.context
        alone = not context.in_job() or context.ending or context.in_thread()
        if alone or context.passes_through() or context.collecting:
            raise Disagreement(
                "a gradient that is this rank's alone, as the script accumulates, is read where "
                "the other ranks do not read it: in a data set, a thread, a child process or a "
                "finalizer; read `.grad` of a parameter before, where all ranks do"
            )
