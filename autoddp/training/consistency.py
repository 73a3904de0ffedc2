"""The check, in the first steps and then now and then, that all ranks have the same numbers.

Replicas could drift apart in silence. The leaves of the latest backward are compared before the
first step that follows, in the order that all ranks share: a script that goes through a set of
parameters or optimizers does so in an order that each process has for itself.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor

from autoddp.comm.context import Code
from autoddp.report import users_line
from autoddp.training.buffers import share_buffers
from autoddp.training.fingerprint import Fingerprint
from autoddp.training.leaves import gradient_of
from autoddp.training.replica import alive

if TYPE_CHECKING:
    from autoddp.effects.run import Run

# Steps that are compared: the first ones, and one in a prime number, so that optimizers which step
# in turn are all compared.
CHECKED, EVERY = 5, 101


class Consistency:
    """The comparisons of one rank."""

    def __init__(self, run: Run) -> None:
        self.run, self.view, self.group = run, run.view, run.group
        self.steps = 0
        self._latest: dict[int, Tensor] = {}  # the leaves of the latest backward, by id
        self._stepped = True  # whether an optimizer has stepped since
        self._compared: dict[int, weakref.ref[Tensor]] = {}  # by the id of the reference

    def note(self, leaves: list[Tensor]) -> None:
        """Note the leaves of a backward."""
        self._latest, self._stepped = {id(leaf): leaf for leaf in leaves}, False

    def before_step(self, optimizer: Any, in_backward: bool) -> None:
        """Compare the leaves of the latest backward, if no optimizer has stepped since.

        Parameters that it has not led to are compared as this optimizer has them: their gradients
        were set by hand. So are those of a step inside a backward, which is not over yet.

        Raises:
            Disagreement: Gradients, weights or generators differ between ranks.
        """
        if in_backward:
            self._latest = {}
        elif not self._stepped:
            self._stepped = True
            self._step([*self._latest.values()])
        given = (p for group in optimizer.param_groups for p in group["params"])
        own = [p for p in given if id(p) not in self._latest and gradient_of(p) is not None]
        if own:
            self._step(own)

    def before_save(self) -> None:
        """Compare weights and generators: a checkpoint of a drifted rank is worth nothing.

        Raises:
            Disagreement: They differ between ranks.
        """
        if self.steps:
            known = alive(self.group, self._compared.values())
            self._compared.clear()  # of those that are gone
            leaves = {id(leaf): leaf for leaf in known} | self._latest
            self._compare([*leaves.values()], gradients=False)

    def _step(self, leaves: list[Tensor]) -> None:
        self.steps += 1
        if self.steps <= CHECKED or self.steps % EVERY == 0:
            self._compare(self.view.order.sorted(leaves))
            share_buffers(self.run)

    def _compare(self, leaves: list[Tensor], gradients: bool = True) -> None:
        found = Fingerprint()
        if gradients:
            there = [g for g in map(gradient_of, leaves) if g is not None]
            found.add("the sum of the gradients", there)
        found.add_each(leaves)
        if self.run.draws_alike:
            found.add_generators()
        with self.view.context.within(Code.PLAIN):
            found.compare(self.group, users_line(), self.view.report.strict)
        for reference in map(weakref.ref, leaves):
            self._compared[id(reference)] = reference
