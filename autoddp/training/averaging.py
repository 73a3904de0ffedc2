"""Local SGD: ranks train by themselves, and their weights are averaged now and then."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import get_worker_info

from autoddp.comm.group import Group
from autoddp.errors import Disagreement
from autoddp.options import Options
from autoddp.patching import Call, Feature, patch
from autoddp.report import users_line
from autoddp.training.iterator import LoaderIterator
from autoddp.training.replica import flattened

if TYPE_CHECKING:
    from autoddp.effects.run import Run

Said = dict[str, Any]  # what a rank says of itself at a meeting


class Averaging(Feature):
    """The option `--average-every K`: weights averaged after K, 2 K, ... steps of an optimizer.

    There are two differences from torch's `PeriodicModelAverager`: weights are averaged in place,
    since a script holds on to them, and there are more averagings. All ranks come to those: the end
    of a loader in which gradients were taken, evaluation, `torch.save`, the end of the script. The
    numbers of steps between two of them may differ (a scaler skips a step, a stream is longer): a
    rank that is there takes part in the averagings of the others until all are there. So nobody
    waits for a step that does not come.

    What no optimizer steps stays each rank's own, BatchNorm's statistics included, as with torch's.
    """

    name = "averaging"
    without = "under --average-every the weights of ranks are never averaged"
    views = ("local",)

    def __init__(self, run: Run) -> None:
        every = run.options.average_every
        self.run, self.view = run, run.view
        self.period = None if every in (None, "epoch") else int(every)
        self.weights = Weights(run.group, run.options.average_momentum)
        self.steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self.stale = False  # gradients were taken, on all ranks, since all averaged all
        # numbers of optimizers that changed weights since they were averaged
        self.stepped: set[int] = set()
        self.trained: set[int] = set()  # ids of what optimizers change, known while stale

    @classmethod
    def wanted(cls, options: Options) -> bool:
        """Return whether `--average-every` is given."""
        return options.average_every is not None

    def setup(self, undo: ExitStack) -> None:
        """Register torch's hooks, and an averaging at the end of the script."""
        every = self.run.options.average_every
        when = "every epoch" if self.period is None else f"every {every} steps"
        what = "weights and momentum" if self.weights.momentum else "weights"
        self.run.report.say_once(
            "averaging",
            f"--average-every {every}",
            f"each rank trains by itself on its share; {what} are averaged {when}, and before "
            "evaluation, torch.save and the end",
        )
        undo.callback(register_optimizer_step_post_hook(self.after_step).remove)
        undo.callback(register_module_forward_pre_hook(self.before_forward).remove)
        self.run.group.at_end.append(self.settle_at_end)
        undo.callback(self.run.group.at_end.remove, self.settle_at_end)

    # ---- what makes weights differ

    @patch(
        "torch.optim:Optimizer.__init__",
        why="ranks know their optimizers by the order they are made in",
    )
    def note_optimizer(self, call: Call) -> None:
        call.plain()
        if self.view.context.is_rank():
            self.weights.number(call.instance)

    @patch("torch.autograd:backward", why="weights are going to differ between ranks")
    def backward(self, call: Call) -> None:
        """Mark weights as stale: all ranks call backward alike, but a scaler may skip a step."""
        call.plain()
        if self.view.context.is_rank() and not self.stale:
            self._grow_stale()

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Count the step; after every K-th, average what this optimizer changes."""
        if not self.view.context.is_rank() or _within_a_step(optimizer):
            return
        number = self.weights.number(optimizer)
        self.stepped.add(number)
        if not self.stale:
            self._grow_stale()
        count = self.steps[optimizer] = self.steps.get(optimizer, 0) + 1
        if self.period is not None and count % self.period == 0:
            self._meet("", {number})

    def _grow_stale(self) -> None:
        self.stale = True
        self.trained = {id(p) for _, some in self.weights.alive() for p in trainable(some)}

    # ---- where all ranks come to

    @patch("torch.utils.data:DataLoader.__iter__", why="an epoch ends where its loader does")
    def watch_loader(self, call: Call) -> Any:
        """Average at the end of the loader, if gradients were taken meanwhile."""
        if not self.view.context.is_rank() or get_worker_info() is not None:
            return call.wrapped()
        return EpochIterator(self, call.wrapped())

    @patch("torch.nn:Module.train", why="evaluation sees averaged weights")
    def before_eval(self, call: Call) -> Any:
        """Average before `eval()` of all that an optimizer trains; a frozen part is no reason."""
        mode = call.args[0] if call.args else call.kwargs.get("mode", True)
        if self.stale and not mode and self.view.context.is_rank():
            held = {id(p) for p in nn.Module.parameters(call.instance)}
            parts = [[id(p) for p in trainable(some)] for _, some in self.weights.alive()]
            if any(part and held.issuperset(part) for part in parts):
                self.settle(f"eval() at {users_line()}")
        return call.plain()

    def before_forward(self, module: nn.Module, args: Any) -> None:
        """Average before trained weights run without gradients: an evaluation, in whatever mode."""
        if (
            torch.compiler.is_compiling()
            or not self.stale
            or torch.is_grad_enabled()
            or not self.view.context.is_rank()
        ):
            return
        compiled = "_orig_mod" in module._modules  # its parts run no hook
        held = nn.Module.parameters(module) if compiled else module._parameters.values()
        if any(id(p) in self.trained for p in held if p is not None):
            self.settle(f"the evaluation at {users_line()}")

    @patch("torch:save", "torch.serialization:save", why="a checkpoint holds averaged weights")
    def before_save(self, call: Call) -> Any:
        """Average before saving: a `state_dict()` shares the memory of the script's weights."""
        if self.stale and self.view.context.is_rank():
            self.settle(f"torch.save at {users_line()}")
        return call.plain()

    def settle_at_end(self) -> None:
        """Average once more when the script has ended."""
        self.settle("the end of the script")

    def settle(self, place: str) -> None:
        """Average what has changed since the last time, once all ranks are at this place.

        Raises:
            Disagreement: Another rank is at another such place.
        """
        while self.stale:
            self._meet(place, set())

    def _meet(self, place: str, due: set[int]) -> None:
        """Average once, with whatever the other ranks want: all know the same after it.

        Args:
            place: Where all ranks come to, and this one is; empty after a step.
            due: The optimizers that want it now.
        """
        mine = {"place": place, "due": sorted(due), "left": sorted(self.stepped)}
        known = dict(self.weights.alive())  # held: the garbage collector may come meanwhile
        said = self.weights.meet(mine, known)
        places = {each["place"] for each in said}
        if len(places - {""}) > 1:
            raise Disagreement(
                "ranks come to be averaged at different places: "
                + ", ".join(f"rank {n} at {s['place']}" for n, s in enumerate(said) if s["place"])
                + "; let all ranks evaluate and save, or after the end of an epoch"
            )
        everything = "" not in places
        wanted = {n for each in said for n in each["left" if everything else "due"]}
        self.weights.average(wanted, said, known)
        self.stepped -= wanted
        left = {n for each in said for n in each["left"]} - wanted
        if everything or (places == {""} and not left):
            self.stale, self.trained = False, set()


class EpochIterator(LoaderIterator):
    """A loader's iterator, at the end of which an epoch may be over."""

    def __init__(self, feature: Averaging, inner: Any) -> None:
        super().__init__(inner)
        self.feature = feature

    def __next__(self) -> Any:
        try:
            return next(self.inner)
        except StopIteration:
            self.feature.settle(f"the end of the loader at {users_line()}")
            raise


class Weights:
    """The optimizers of a rank, by numbers that all ranks share, and what is averaged of each."""

    def __init__(self, group: Group, momentum: bool) -> None:
        self.group, self.momentum = group, momentum
        self._known: list[weakref.ref[Optimizer]] = []

    def number(self, optimizer: Optimizer) -> int:
        """Return the number of an optimizer, known from now on."""
        for number, known in enumerate(self._known):
            if known() is optimizer:
                return number
        self._known.append(weakref.ref(optimizer))
        return len(self._known) - 1

    def alive(self) -> Iterator[tuple[int, Optimizer]]:
        """Yield the optimizers that are still there, with their numbers."""
        for number, known in enumerate(self._known):
            optimizer = known()
            if optimizer is not None:
                yield number, optimizer

    def meet(self, mine: Said, known: dict[int, Optimizer]) -> list[Said]:
        """Exchange what every rank says, with the parameters' sizes of these optimizers added."""
        mine["sizes"] = {n: [p.numel() for p in trainable(some)] for n, some in known.items()}
        if self.momentum:
            mine["states"] = {n: sorted(_momentum(some)) for n, some in known.items()}
        said: list[Said] = json.loads(self.group.confer("averaging", json.dumps(mine).encode()))
        return said

    @torch.no_grad()
    def average(self, numbers: set[int], said: list[Said], known: dict[int, Optimizer]) -> None:
        """Take the mean over ranks, in place, of what the optimizers of these numbers change.

        Raises:
            Disagreement: An optimizer has other parameters on another rank.
        """
        tensors: list[Tensor] = []
        for number in sorted(numbers):
            sizes = [each["sizes"].get(str(number)) for each in said]
            if None in sizes:
                continue  # garbage-collected on some rank: nobody trains with it any more
            if any(other != sizes[0] for other in sizes):
                raise Disagreement(
                    f"optimizer {number} of the script changes other parameters on other ranks; "
                    "build models and optimizers alike on all of them"
                )
            tensors += [p.detach() for p in trainable(known[number])]
            if self.momentum:
                there = set.intersection(
                    *({tuple(x) for x in each["states"][str(number)]} for each in said)
                )
                tensors += [
                    x for key, x in sorted(_momentum(known[number]).items()) if key in there
                ]
        for some, flat in flattened(tensors):
            with self.group.together("averaging", flat):
                self.group.start_all_reduce(flat).wait()
            flat.div_(self.group.size)
            for x, mean in zip(some, flat.split([x.numel() for x in some]), strict=True):
                x.copy_(mean.view_as(x))


def trainable(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that an optimizer changes, in its order."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _momentum(optimizer: Optimizer) -> dict[tuple[int, str], Tensor]:
    """Return the state that has its parameter's shape, by the parameter's place and a name."""
    return {
        (place, name): value
        for place, p in enumerate(trainable(optimizer))
        for name, value in optimizer.state.get(p, {}).items()
        if isinstance(value, Tensor)
        and value.shape == p.shape
        and value.is_floating_point()
        and value.dim()
    }


def _within_a_step(optimizer: Optimizer) -> bool:
    """Return whether this step is called by another one of the same optimizer, by `super()`."""
    frame = sys._getframe(2)  # torch's wrapper around a step, which calls the hook
    code, outer = frame.f_code, frame.f_back
    while outer is not None:
        if outer.f_code is code and outer.f_locals.get("self") is optimizer:
            return True
        outer = outer.f_back
    return False
