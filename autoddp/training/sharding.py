"""Each rank keeps the optimizer's state of its share of the parameters."""

from __future__ import annotations

import io
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, optim
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from autoddp.comm.context import Code
from autoddp.comm.group import Group
from autoddp.options import Options
from autoddp.patching import Call, Feature, patch
from autoddp.report import users_line
from autoddp.torch_internals import disable_dynamo
from autoddp.training.replica import alive, flattened

if TYPE_CHECKING:
    from autoddp.effects.run import Run

# Each steps every parameter by itself, leaves alone one that has no gradient, and makes its state
# when it has one.
KINDS: tuple[type[Optimizer], ...] = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam, optim.RMSprop),
    *(optim.Adadelta, optim.Rprop, optim.ASGD),
)


class Sharding(Feature):
    """The option `--shard-optimizer`: `ZeroRedundancyOptimizer` for the script's own optimizer.

    An optimizer sees gradients of this rank's share alone, so it makes state of these alone; then
    each rank hands on the parameters that it has stepped. Only `optimizer.state` shows the split:
    `state_dict()`, a pickle and a copy hold the whole, on all ranks, and all of them must ask for
    it; of a state that is loaded a rank keeps its share.
    """

    name = "sharding"
    without = "under --shard-optimizer every rank keeps the state of all parameters"

    def __init__(self, run: Run) -> None:
        self.run, self.view, self.group = run, run.view, run.group
        self.shares: weakref.WeakKeyDictionary[Optimizer, Share] = weakref.WeakKeyDictionary()
        self.known: list[weakref.ref[Optimizer]] = []  # in the order of their first steps

    @classmethod
    def wanted(cls, options: Options) -> bool:
        """Return whether `--shard-optimizer` is given."""
        return options.shard_optimizer

    def setup(self, undo: ExitStack) -> None:
        """Register hooks around steps, and make optimizers whole again at the end of the script."""
        undo.callback(register_optimizer_step_pre_hook(self.before_step).remove)
        undo.callback(register_optimizer_step_post_hook(self.after_step).remove)
        self.run.group.at_end.append(self.complete)
        undo.callback(self.run.group.at_end.remove, self.complete)

    @disable_dynamo
    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Hide the gradients that are another rank's to apply, after a closure has made them."""
        if not self.view.context.is_script() or not self._shards(optimizer):
            return None
        share = self.shares.get(optimizer)
        if share is None:
            share = self.shares[optimizer] = Share(self.group)
            self.known.append(weakref.ref(optimizer))
        share.show()  # what a step that raised has left hidden
        names = dict(zip(("self", "closure"), args, strict=False)) | kwargs
        closure = names.get("closure")
        if closure is None:
            share.hide(optimizer)
            return None

        def then_hide() -> Any:
            loss = closure()
            share.hide(optimizer)
            return loss

        return (optimizer, then_hide), {}

    def _shards(self, optimizer: Any) -> bool:
        plain = not any(group.get("differentiable") for group in optimizer.param_groups)
        if type(optimizer) in KINDS and plain:
            return True
        self.run.report.say_once(
            "sharding",
            f"{type(optimizer).__name__} at {users_line()}",
            "its state is whole on every rank, as it may not step each parameter by itself",
        )
        return False

    @disable_dynamo
    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Give every rank the parameters that the others have stepped."""
        share = self.shares.get(optimizer) if self.view.context.is_script() else None
        if share is not None:
            share.show()
            with self.view.context.within(Code.PLAIN):
                share.hand_on()

    @patch("torch.optim:Optimizer.state_dict", why="a checkpoint holds the state of all parameters")
    def whole_state(self, call: Call) -> Any:
        with self._whole(call.instance):
            return call.plain()

    @patch(
        "torch.optim:Optimizer.__getstate__",
        why="a pickle or a copy holds the state of all parameters",
    )
    def whole_pickle(self, call: Call) -> Any:
        with self._whole(call.instance):
            return call.plain()

    @patch(
        "torch.optim:Optimizer.load_state_dict",
        why="of the state that is loaded a rank keeps its share",
    )
    def load(self, call: Call) -> Any:
        """Load the state, and drop that of other ranks' parameters.

        Before its first step an optimizer has no share yet: it drops the rest at that step.
        """
        optimizer = call.instance
        found = call.plain()
        share = self.shares.get(optimizer) if self.view.context.is_script() else None
        if share is not None:
            share.drop(optimizer)
        return found

    @contextmanager
    def _whole(self, optimizer: Any) -> Iterator[None]:
        share = self.shares.get(optimizer) if self.view.context.is_script() else None
        if share is None:
            yield
            return
        before = optimizer.state
        optimizer.state = self._gathered(optimizer, share)
        try:
            yield
        finally:
            optimizer.state = before

    def _gathered(self, optimizer: Any, share: Share) -> defaultdict[Any, Any]:
        with self.view.context.within(Code.PLAIN), self.run.effects.context.internal():
            return share.gathered(optimizer)

    def complete(self) -> None:
        """Give every optimizer its whole state: after a decorated function one process steps it."""
        for optimizer in alive(self.group, self.known) if self.known else ():
            optimizer.state = self._gathered(optimizer, self.shares.pop(optimizer))
        self.known.clear()


class Share:
    """The owners of an optimizer's parameters: torch's partition, largest first, evenly by size."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._owner: dict[int, int] = {}  # of a parameter, by its id
        self._sizes = [0] * group.size
        self._hidden: list[tuple[Tensor, Tensor]] = []  # parameters, and their gradients
        self._stepped: list[Tensor] = []

    def _owners(self, optimizer: Optimizer) -> dict[int, int]:
        """Return the owners of parameters, by id; those that are added later find their place."""
        new = [p for p in parameters(optimizer) if id(p) not in self._owner]
        for p in sorted(new, key=lambda p: -p.numel()):
            smallest = self._sizes.index(min(self._sizes))
            self._owner[id(p)] = smallest
            self._sizes[smallest] += p.numel()
        return self._owner

    def _mine(self, optimizer: Optimizer) -> Callable[[Tensor], bool]:
        owners = self._owners(optimizer)
        return lambda p: owners[id(p)] == self.group.rank

    def hide(self, optimizer: Optimizer) -> None:
        """Leave the optimizer the gradients of this rank's parameters, and their state."""
        mine = self._mine(optimizer)
        self._stepped = [p for p in parameters(optimizer) if p.grad is not None]
        self._hidden = [(p, p.grad) for p in self._stepped if not mine(p) and p.grad is not None]
        for p, _ in self._hidden:
            p.grad = None
        self.drop(optimizer)

    def show(self) -> None:
        """Put hidden gradients back, unless a parameter has got another one."""
        hidden, self._hidden = self._hidden, []
        for p, grad in hidden:
            if p.grad is None:
                p.grad = grad

    def drop(self, optimizer: Optimizer) -> None:
        """Drop the state of parameters that are another rank's."""
        mine = self._mine(optimizer)
        for p in parameters(optimizer):
            if not mine(p):
                optimizer.state.pop(p, None)

    @torch.no_grad()
    def hand_on(self) -> None:
        """Broadcast each rank's parameters from the rank that has stepped them."""
        stepped, self._stepped = self._stepped, []
        parts = [
            list(flattened([p.detach() for p in stepped if self._owner[id(p)] == rank]))
            for rank in range(self.group.size)
        ]
        self.group.broadcast([[flat for _, flat in kinds] for kinds in parts])
        for kinds in (kinds for rank, kinds in enumerate(parts) if rank != self.group.rank):
            for some, flat in kinds:
                for p, new in zip(some, flat.split([p.numel() for p in some]), strict=True):
                    p.copy_(new.view_as(p))

    def gathered(self, optimizer: Optimizer) -> defaultdict[Any, Any]:
        """Gather the state of all parameters from all ranks, in the parameters' order."""
        mine = self._mine(optimizer)
        every = parameters(optimizer)
        own = {
            n: optimizer.state[p] for n, p in enumerate(every) if mine(p) and p in optimizer.state
        }
        states: dict[int, Any] = {}
        packed = io.BytesIO()
        torch.save(own, packed)
        for rank, data in enumerate(self.group.all_bytes(packed.getvalue())):
            # numbers and text alone: nothing that comes over a network is run
            theirs = (
                own if rank == self.group.rank else torch.load(io.BytesIO(data), weights_only=True)
            )
            states.update(theirs)
        whole = defaultdict(
            dict, {key: x for key, x in optimizer.state.items() if key not in set(every)}
        )
        whole.update({every[n]: states[n] for n in sorted(states)})
        return whole


def parameters(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of all groups, in their order."""
    return [p for group in optimizer.param_groups for p in group["params"]]
