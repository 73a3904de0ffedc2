"""Local SGD: ranks train by themselves, and their weights are averaged now and then."""

from __future__ import annotations

import json
import weakref
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from autoddp.errors import Disagreement
from autoddp.options import Options
from autoddp.patching import Call, Feature, patch
from autoddp.report import users_line
from autoddp.training.iterator import LoaderIterator
from autoddp.training.replica import flattened, put_back

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class Averaging(Feature):
    """The option `--average-every K`: weights averaged after K, 2 K, ... steps of an optimizer.

    Unlike torch's `PeriodicModelAverager`, it averages weights in place, and also at common places:
    the end of a loader in which gradients were computed, `torch.save`, the end of the script. The
    numbers of steps between two of these may differ (a scaler skips a step): a rank that is at such
    a place takes part in the averagings of the others until all are there.

    Only what an optimizer steps is averaged: neither the statistics of BatchNorm nor the state of
    optimizers, as with torch's.
    """

    name = "averaging"
    without = "under --average-every the weights of ranks are never averaged"
    views = ("local",)

    def __init__(self, run: Run) -> None:
        every = run.options.average_every
        self.run, self.view, self.group = run, run.view, run.group
        self.period = None if every in (None, "epoch") else int(every)
        self.known: list[weakref.ref[Optimizer]] = []  # in the order of their creation
        self.steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self.stale = False  # whether weights may differ: gradients were computed since

    @classmethod
    def wanted(cls, options: Options) -> bool:
        """Return whether `--average-every` is given."""
        return options.average_every is not None

    def setup(self, undo: ExitStack) -> None:
        """Register torch's hooks, and an averaging at the end of the script."""
        every = self.run.options.average_every
        when = "every epoch" if self.period is None else f"every {every} steps"
        self.run.report.say_once(
            "averaging",
            f"--average-every {every}",
            f"each rank trains by itself on its share; weights are averaged {when}, at the "
            "end of each loader, before torch.save, and at the end",
        )
        undo.callback(register_optimizer_step_post_hook(self.after_step).remove)
        at_end = partial(self.synchronize, "the end of the script")
        self.group.at_end.append(at_end)
        undo.callback(self.group.at_end.remove, at_end)

    # ---- what makes weights differ

    @patch(
        "torch.optim:Optimizer.__init__",
        why="ranks identify optimizers by the order of their creation",
    )
    def note_optimizer(self, call: Call) -> None:
        call.plain()
        if self.view.context.is_rank():
            self.known.append(weakref.ref(call.instance))

    @patch("torch.autograd:backward", why="weights are going to differ between ranks")
    def backward(self, call: Call) -> None:
        """Mark weights as stale: all ranks call backward alike, but a scaler may skip a step."""
        call.plain()
        if self.view.context.is_rank():
            self.stale = True

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Count the step; average after every K-th."""
        if not self.view.context.is_rank():
            return
        if all(known() is not optimizer for known in self.known):  # a copy, made without __init__
            self.known.append(weakref.ref(optimizer))
        self.stale = True
        count = self.steps[optimizer] = self.steps.get(optimizer, 0) + 1
        if self.period is not None and count % self.period == 0:
            self._average("")

    # ---- common places

    @patch("torch.utils.data:DataLoader.__iter__", why="an epoch ends where its loader does")
    def watch_loader(self, call: Call) -> Any:
        """Average at the end of the loader, if gradients were taken meanwhile."""
        if not self.view.context.is_rank():
            return call.wrapped()
        return LoaderIterator(call.wrapped(), self._next)

    def _next(self, inner: Any) -> Any:
        try:
            return next(inner)
        except StopIteration:
            self.synchronize(f"the end of the loader at {users_line()}")
            raise

    @patch("torch:save", "torch.serialization:save", why="a checkpoint holds averaged weights")
    def before_save(self, call: Call) -> Any:
        """Average before saving: a `state_dict()` shares the memory of the script's weights."""
        if self.view.context.is_rank():
            self.synchronize(f"torch.save at {users_line()}")
        return call.plain()

    def synchronize(self, place: str) -> None:
        """Average until all ranks are at this place, if weights may differ.

        Raises:
            Disagreement: Another rank is at another such place.
        """
        while self.stale:
            self._average(place)

    def _average(self, place: str) -> None:
        """Average the parameters of all optimizers over the ranks, in place.

        Args:
            place: The common place that this rank has reached; empty after a step.

        Raises:
            Disagreement: Ranks are at different places, or train other parameters.
        """
        here = [known() for known in self.known]  # held: the garbage collector may come meanwhile
        there = [one is not None for one in here]
        found = json.loads(self.group.confer("averaging", json.dumps([place, there]).encode()))
        places = {where for where, _ in found}
        if len(places - {""}) > 1:
            raise Disagreement(
                "ranks average their weights at different places: "
                + ", ".join(f"rank {n} at {where}" for n, (where, _) in enumerate(found) if where)
                + "; let all ranks evaluate and save, or after the end of an epoch"
            )
        tensors: dict[int, Tensor] = {}
        for one, theirs in zip(here, zip(*(each for _, each in found), strict=True), strict=True):
            if one is not None and all(theirs):  # else freed on some rank: none trains with it
                given = (p for params in one.param_groups for p in params["params"])
                tensors |= {id(p): p.detach() for p in given if p.requires_grad}
        for some, flat in flattened([*tensors.values()]):
            with self.group.together("averaging", flat):
                self.group.start_all_reduce(flat).wait()
            put_back(some, flat.div_(self.group.size))
        if len(places) == 1:  # else some ranks are still on their way to this place
            self.stale = False
