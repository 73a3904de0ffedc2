"""Parameters are sharded when a model goes to its device, or when its optimizer is made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autoddp.comm.context import Code
from autoddp.patching import Call, Feature, patch, stands_for
from autoddp.report import users_line
from autoddp.torch_internals import SavedTensors, device_of, in_backward
from autoddp.training.leaves import with_setter
from autoddp.training.parameters import functions as functions  # implements them
from autoddp.training.parameters.aliases import Alias
from autoddp.training.parameters.choice import Choice
from autoddp.training.parameters.functions import on_wholes
from autoddp.training.parameters.replaced import share_data
from autoddp.training.parameters.saving import saving
from autoddp.training.parameters.shard import (
    ShardedParameter,
    held,
    is_shard,
    made_of,
    state_of,
)
from autoddp.training.parameters.units import Sharding, shardable
from autoddp.training.parameters.wholes import Wholes
from autoddp.view.order import parameters_of
from autoddp.view.redistribute import Boundary, Renamed

if TYPE_CHECKING:
    from autoddp.effects.run import Run

TRANSFORMS = ("vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "functionalize")
WHOLE = "it gets whole parameters, as Python does not ask __torch_function__ there"


class ShardedParameters(Feature):
    """Parameters, gradients and an optimizer's states are sharded; the script sees whole ones."""

    name = "parameters"
    without = "each rank holds all parameters, their gradients and the optimizer's states"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.run, self.group = run, run.group
        self.wholes = Wholes(run.view)
        self.sharding = Sharding(self.wholes)
        self.choice = Choice(run.options.parameters, run.group, run.world.local_world_size)

    @classmethod
    def wanted(cls, options: Any) -> bool:
        return options.parameters != "replicated"

    def setup(self, undo: ExitStack) -> None:
        """Free what is gathered, and compare what was written, before each step of an optimizer."""
        clear = register_optimizer_step_pre_hook(self._before_step)
        undo.callback(clear.remove)
        self.run.effects.saving = functools.partial(saving, self.wholes)

    def _before_step(self, *_: Any) -> None:
        view = self.run.view
        if view.sharded_parameters and not view.context.depth[Code.FETCH]:
            self.wholes.before_step()

    def _applies(self) -> bool:
        context = self.run.view.context
        alone = context.depth[Code.FETCH]  # other ranks do not come here
        return context.on_script_thread() and context.is_script() and not alone

    @patch(
        *("torch.nn:Module.to", "torch.nn:Module.cuda", "torch.nn:Module.cpu"),
        why="a model that does not fit is sharded before it goes to its device",
    )
    def to_device(self, call: Call) -> Any:
        """Shard a model, block by block, so that no device ever holds the whole of it."""
        if self._applies():
            self.shard([*parameters_of(call.instance)], call.instance, _device_of(call))
        return call.plain()

    @patch("torch.optim:Optimizer.__init__", why="the parameters that it steps are sharded")
    def optimize(self, call: Call) -> Any:
        """Shard the parameters of an optimizer that are not yet."""
        if not call.named or not self._applies():
            return call.plain()
        given = call.named["params"]
        if isinstance(given, Tensor):
            return call.plain()
        given = [*given]
        groups = [x["params"] if isinstance(x, dict) else x for x in given]
        for n, items in enumerate(groups):
            if not isinstance(items, (Tensor, tuple, list)):  # a generator
                groups[n] = [*items]
                given[n] = {**given[n], "params": groups[n]}
        self.shard(_tensors(groups))
        return call.changed(params=given)

    def shard(
        self, found: list[Any], module: nn.Module | None = None, to: torch.device | None = None
    ) -> None:
        """Shard parameters, those of a module block by block, if this job does so."""
        new = [p for p in found if shardable(p)]
        if not new:
            return
        crowding = self.choice.crowding(new)
        if crowding:
            self.run.report.say_once("memory", users_line(), crowding)
        why = self.choice.why(new, to or new[0].device)
        if not why:
            return
        before = self.sharding.elements
        with self.wholes.internal():
            over = self.sharding.over = self.choice.over(new, to or new[0].device)
        if module is None:
            self.sharding.parameters(new)
        else:
            self.sharding.model(module)
        count = self.sharding.elements - before
        if count:
            text = f"{count:,} elements of parameters are sharded over {over.name}"
            more = "" if SavedTensors.nest else "; a newer torch also frees what a backward needs"
            self.run.report.say_once("parameters", users_line(), f"{text}: {why}{more}")

    @patch("torch.optim:Optimizer.load_state_dict", why="states are sharded like parameters")
    def load_states(self, call: Call) -> Any:
        """Shard the states that were loaded."""
        out = call.plain()
        for p, state in call.instance.state.items():
            if is_shard(p) and isinstance(state, dict):
                layout = held(p).layout
                for key, x in state.items():
                    if type(x) is Tensor and x.shape == layout.shape and not x.requires_grad:
                        local = self.wholes.agreement.cut(x, layout).clone()
                        state[key] = state_of(held(p).like(local))
        return out

    @patch(
        "torch.nn:Parameter.__new__",
        why="a parameter that is made of a sharded tensor is sharded, in the same memory",
        hot=True,
    )
    def make_parameter(self, plain: Any) -> Any:
        """Make a parameter of a sharded tensor."""

        def __new__(cls: Any, data: Any = None, requires_grad: bool = True, **more: Any) -> Any:
            if not is_shard(data) or cls is not nn.Parameter:
                return plain(cls, data, requires_grad, **more)
            mine = held(data)
            return made_of(mine.alias(mine.local.data), ShardedParameter, requires_grad)

        return staticmethod(__new__)

    @patch("torch.autograd:backward", why="gathered parameters are freed at its end", hot=True)
    def free_after(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Free gathered parameters at the end of a backward, but of one inside another."""
        view = self.run.view

        @stands_for(plain)
        def backward(*args: Any, **kwargs: Any) -> Any:
            try:
                return plain(*args, **kwargs)
            finally:
                if view.sharded_parameters and not in_backward():
                    self.wholes.clear()

        return backward

    @patch("torch.autograd:Function.apply", why=f"a custom autograd function: {WHOLE}", hot=True)
    def apply(self, plain: Any) -> Any:
        """Call functions of the script with whole parameters."""
        bind = vars(torch.autograd.Function)["apply"].__get__

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            run = bind(None, cls)
            if issubclass(cls, (Boundary, Renamed)) or not any(map(_is_ours, args)):
                return run(*args, **kwargs)
            return on_wholes(run, args, kwargs)

        return classmethod(apply)

    @patch(
        *(f"torch.func:{name}" for name in TRANSFORMS),
        "torch:vmap",
        why=f"a transform of torch.func: {WHOLE}",
    )
    def transform(self, call: Call) -> Any:
        """Give whole parameters to the function that the transform returns."""
        made = call.plain()

        @functools.wraps(made)
        def transformed(*args: Any, **kwargs: Any) -> Any:
            return _on_wholes(made, args, kwargs)

        return transformed

    @patch("torch:Tensor.data", why="a plain tensor may get the memory of a sharded one", hot=True)
    def share_memory(self, plain: Any) -> Any:
        """Let a plain tensor whose data is replaced share what is sharded."""

        def write(x: Any, value: Any) -> Any:
            if type(x) is Alias or (_is_ours(value) and not is_shard(x)):
                share_data(x, value)
                return NotImplemented
            return value

        return with_setter(plain, write)

    @patch("torch:compile", why="compiled graphs read parameters, which are replicated for them")
    def compile(self, call: Call) -> Any:
        """Replicate the parameters of a module that is compiled."""
        model = call.args[0] if call.args else call.kwargs.get("model")
        if isinstance(model, nn.Module) and not call.kwargs.get("disable"):
            self.sharding.compiled.add(model)
            self.sharding.undo(model, "torch.compile needs it whole; leave it out to shard")
        return call.plain()

    @patch(
        *("torch.jit:trace", "torch.jit:trace_module", "torch.jit:script"),
        *("torch.jit:_get_trace_graph", "torch.export:export", "torch.onnx:export"),
        why="a graph of a module holds its parameters, which are replicated from then on",
    )
    def trace(self, call: Call) -> Any:
        """Replicate the parameters of the module."""
        for x in (*call.args, *call.kwargs.values()):
            if isinstance(x, nn.Module):
                self.sharding.undo(x, f"{call.name} makes a graph of its module")
        return call.plain()

    @patch(
        *("torch.func:vjp", "torch.func:jvp", "torch.jit:ScriptFunction.__call__"),
        *("torch.utils.dlpack:to_dlpack", "torch:to_dlpack"),
        why=f"transforms, scripted functions, DLPack: {WHOLE}",
    )
    def call_whole(self, call: Call) -> Any:
        """Call the function with whole parameters."""
        return _on_wholes(call.wrapped, call.args, call.kwargs)


def _is_ours(x: Any) -> bool:
    return is_shard(x) or type(x) is Alias


def _on_wholes(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    if any(map(_is_ours, leaves)):
        return on_wholes(function, args, kwargs, hooks=False)
    return function(*args, **kwargs)


def _tensors(groups: list[Any]) -> list[Any]:
    """Return the tensors of an optimizer's argument: of groups, of pairs with names, or alone."""
    found: list[Any] = []
    for x in groups:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, (tuple, list)):
            found += _tensors([*x])
    return found


def _device_of(call: Call) -> torch.device | None:
    """Return the device that a call moves a module to; None if it does not."""
    name = call.wrapped.__name__
    if name != "to":
        return torch.device(name) if name == "cpu" else torch.device("cuda")
    try:
        return device_of(*call.args, **call.kwargs)
    except (RuntimeError, TypeError):
        return None
