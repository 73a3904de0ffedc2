"""The look, now and then, whether all ranks have the same weights and gradients.

Replicas could drift apart in silence. What a backward has led to is compared before the first step
that follows, in the order that all ranks share. Which optimizer steps first, and in which order it
has its parameters, may be each rank's own, where a script goes through a set of them.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor

from autoddp.comm.context import Code
from autoddp.report import users_line
from autoddp.training.fingerprint import Fingerprint
from autoddp.training.gradient_access import gradient_of
from autoddp.training.replica import alive

if TYPE_CHECKING:
    from autoddp.effects.run import Run

# Rounds of the same leaves that are compared: the first ones, and now and then.
CHECKED, EVERY = 3, 100
RECENT = 8  # sets of leaves that are kept in mind: of backwards before a step, and of steps


class Consistency:
    """The comparisons of one rank."""

    def __init__(self, run: Run) -> None:
        self.run, self.view, self.group = run, run.view, run.group
        # the leaves of the latest backwards since the last step, and all of those before that step
        self._fresh: dict[tuple[int, ...], list[Tensor]] = {}
        self._covered: dict[int, Tensor] = {}
        # of sets of leaves that were stepped, the one used last comes last: how often, and these
        self._seen: dict[Any, tuple[int, list[weakref.ref[Tensor]]]] = {}

    def note(self, leaves: list[Tensor]) -> None:
        """Note the leaves of a backward; a script that never steps may have new ones in each."""
        key = tuple(map(id, leaves))
        self._fresh.pop(key, None)
        self._fresh[key] = leaves
        if len(self._fresh) > RECENT:
            del self._fresh[next(iter(self._fresh))]

    def before_step(self, optimizer: Any, in_backward: bool) -> None:
        """Compare what the latest backwards have led to, if an optimizer has not stepped since.

        Gradients that came of no backward are compared as this optimizer has them, and so are those
        of a step inside a backward, which has not come to all leaves yet.

        Raises:
            Disagreement: Gradients, weights or generators differ between ranks.
        """
        if in_backward:
            self._covered = {}
        elif self._fresh:
            self._covered = {id(leaf): leaf for some in self._fresh.values() for leaf in some}
            self._fresh.clear()
            self._look([*self._covered.values()])
        given = (p for group in optimizer.param_groups for p in group["params"])
        own = [p for p in given if id(p) not in self._covered and gradient_of(p) is not None]
        if own:
            self._look(own)

    def before_save(self) -> None:
        """Compare weights and generators: a checkpoint of a drifted rank is worth nothing.

        Raises:
            Disagreement: They differ between ranks.
        """
        if not self._seen:
            return
        # a leaf has one reference, which tells it from others when it is gone, too
        references = {id(ref): ref for _, some in self._seen.values() for ref in some}
        self._compare(alive(self.group, references.values()), gradients=False)

    def _look(self, leaves: list[Tensor]) -> None:
        ordered = self.view.order.sorted(leaves)
        key = self.view.order.numbers(ordered)
        before, known = self._seen.pop(key, (0, []))
        if not known or None in key:  # what no module showed may be others each time
            known = [weakref.ref(leaf) for leaf in ordered]
        count = before + 1
        self._seen[key] = count, known
        if len(self._seen) > RECENT:
            del self._seen[next(iter(self._seen))]
        if count <= CHECKED or count % EVERY == 0:
            self._compare(ordered)

    def _compare(self, leaves: list[Tensor], gradients: bool = True) -> None:
        found = Fingerprint()
        if gradients:
            there = [g for g in map(gradient_of, leaves) if g is not None]
            found.add("the sum of the gradients", there)
        for number, leaf in enumerate(leaves):
            found.add(f"parameter {number} of {len(leaves)}, of shape {tuple(leaf.shape)},", [leaf])
        if self.run.draws_alike:
            found.add_generators()
        with self.view.context.within(Code.PLAIN):
            found.compare(self.group, users_line(), self.view.report.strict)
