"""The check, in the first steps and periodically, that all ranks have the same numbers.

It detects replicas that drift apart. The leaves of the latest backward are compared before the
first step that follows, in the order that all ranks share: a script that goes through a set of
parameters or optimizers does so in an order that each process has for itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp.comm import accelerator
from autoddp.comm.accelerator import CPU
from autoddp.comm.context import Code
from autoddp.comm.group import MIN, Group
from autoddp.own_operations import no_modes
from autoddp.report import users_line
from autoddp.training.fingerprint import Fingerprint
from autoddp.training.leaves import gradient_of
from autoddp.training.replica import flattened, put_back

if TYPE_CHECKING:
    from autoddp.effects.run import Run

# Steps that are compared: the first ones, then one in a prime number, so that optimizers which step
# in turn are all compared, and later one in a larger number: a comparison takes milliseconds.
CHECKED, EVERY, LATER = 5, 101, 1009
MANY = 20  # backwards without a step, behind which each is one: weights are updated by hand


class Consistency:
    """The comparisons of one rank."""

    def __init__(self, run: Run) -> None:
        self.run, self.view, self.group = run, run.view, run.group
        self.steps, self.next = 0, 1  # steps so far, and the one that is compared next
        self._latest: dict[int, Tensor] = {}  # the leaves of the latest backward, by id
        self._stepped = True  # whether an optimizer has stepped since
        self._since = 0  # backwards since an optimizer has stepped
        self.unread = False  # whether its leaves were not read, as they are not compared
        self._compared: dict[int, weakref.ref[Tensor]] = {}  # by the id of the reference

    def note(self, leaves: list[Tensor]) -> None:
        """Note the leaves of a backward.

        Raises:
            Disagreement: The backward is a step, and weights or generators differ between ranks.
        """
        self._latest, self._stepped = {id(leaf): leaf for leaf in leaves}, False
        self.unread = False
        if self.view.context.on_script_thread():  # others are in no common order
            self._since += 1
            if self._since > MANY:
                self._step(leaves, gradients=False)  # these may be pending

    def skips(self) -> bool:
        """Return whether a backward is not compared; if so, note it, as its leaves are not read."""
        if self.steps + 1 >= self.next:
            return False
        self._latest, self._stepped, self.unread = {}, False, True
        self._since += 1
        self.steps += self._since > MANY
        return True

    def passes(self) -> bool:
        """Return whether this is a step behind a backward that is not compared."""
        if self.unread and not self._stepped:
            self._stepped = True
            self._since = 0
            self.steps += 1
        return self.unread

    def expect_any(self) -> None:
        """Note that gradients may be set by hand from here, and not by a backward."""
        self.unread = self.unread and not self._stepped

    def before_step(self, optimizer: Any, in_backward: bool) -> None:
        """Compare the leaves of the latest backward, if no optimizer has stepped since.

        Parameters that it has not led to are compared as this optimizer has them: their gradients
        were set by hand. So are those of a step inside a backward, which is not over yet.

        Raises:
            Disagreement: Gradients, weights or generators differ between ranks.
        """
        if self.passes():
            return
        self._since = 0
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

    def _step(self, leaves: list[Tensor], gradients: bool = True) -> None:
        self.steps += 1
        if self.steps >= self.next:
            self.next = _following(self.steps)
            self._compare(self.view.order.sorted(leaves), gradients)
            share_buffers(self.run)

    def _compare(self, leaves: list[Tensor], gradients: bool = True) -> None:
        found, where = Fingerprint(), users_line()
        # the script's own kinds of tensors compute in it
        with self.view.context.within(Code.PLAIN), no_modes():
            if gradients:
                there = [g for g in map(gradient_of, leaves) if g is not None]
                found.add("the sum of the gradients", there)
            found.add_each(leaves)
            if self.run.draws_alike:
                found.add_generators()
            found.compare(self.group, where, self.view.report.strict)
        for reference in map(weakref.ref, leaves):
            self._compared[id(reference)] = reference


def _following(step: int) -> int:
    """Return the first step behind this one that is compared."""
    if step < CHECKED:
        return step + 1
    if step < LATER:
        return min((step // EVERY + 1) * EVERY, LATER)
    return (step // LATER + 1) * LATER


def alive(group: Group, references: Iterable[Callable[[], Any]]) -> list[Any]:
    """Return the objects of weak references that no rank has collected yet."""
    found = [reference() for reference in references]
    there = torch.tensor([each is not None for each in found], device=CPU).long()
    everywhere = group.all_reduce(there, MIN).tolist()
    return [each for each, here in zip(found, everywhere, strict=True) if here]


def share_buffers(run: Run) -> None:
    """Give all ranks the buffers that rank 0 has on its accelerator.

    Accelerators sum in no fixed order, so the same computation differs in its last bits between
    ranks. Gradients are averaged, so weights stay equal. Buffers that are updated outside of
    autograd (the moving average of a codebook, the statistics of a BatchNorm that gets the whole
    batch) would drift apart.
    """
    group, modules = run.group, run.view.recent_modules
    if not group.kind or not modules or run.options.batchnorm != "exact" or accelerator.capturing():
        return
    with run.view.context.within(Code.PLAIN), torch.no_grad():
        found = {
            id(x): x
            for module in alive(group, modules)
            for x in module.buffers()
            if x.device.type == group.kind and x.is_floating_point() and x.layout is torch.strided
        }
        for some, flat in flattened([*found.values()]):
            put_back(some, group.all_gather(flat)[0])
