"""Functions that are called with whole batches: compiled, transformed, traced or exported ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from autoddp.comm.context import Code
from autoddp.patching import Call, Feature, patch, stands_for
from autoddp.training.compiled import CompiledCall
from autoddp.training.local_graph import Operators
from autoddp.view import Partial, ShardedTensor
from autoddp.view.dispatch import call_on_whole

if TYPE_CHECKING:
    from weakref import WeakKeyDictionary

    from autoddp.view.state import View

FULL = "it sees the whole batch, as Python does not ask __torch_function__ there"
TRANSFORMS = ("vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "functionalize")


class WholeCalls(Feature):
    """Patches of functions that ignore `__torch_function__`: they get whole tensors."""

    view: View
    operators: Operators
    calls: WeakKeyDictionary[nn.Module, CompiledCall]  # of compiled modules

    @patch("torch:compile", why="a graph is compiled for the rows of each rank")
    def compile(self, call: Call) -> Any:
        """Keep the arguments; a module is compiled when it is called."""
        given = dict(call.kwargs)
        model = call.args[0] if call.args else given.pop("model", None)
        if given.get("disable"):
            return call.plain()
        if model is None:
            return lambda model: self._compiled(call.wrapped, model, given)
        return self._compiled(call.wrapped, model, given)

    def _compiled(self, plain: Callable[..., Any], model: Any, given: dict[str, Any]) -> Any:
        found = CompiledCall(self.view, self.operators, model, given)
        if isinstance(model, nn.Module):
            made = plain(model, **given)
            self.calls[made] = found
            return made
        owner = getattr(model, "__self__", None)
        if isinstance(owner, nn.Module) and model == owner._call_impl:  # module.compile()
            self.calls[owner] = found
            return plain(model, **given)

        @functools.wraps(model)
        def run(*args: Any, **kwargs: Any) -> Any:
            return found(*args, **kwargs)

        return run

    @patch(
        *(f"torch.func:{name}" for name in TRANSFORMS),
        "torch:vmap",
        why=f"a transform of torch.func: {FULL}",
    )
    def transform(self, call: Call) -> Any:
        """Give whole tensors to the function that the transform returns."""
        return whole_inputs(call.plain())

    @patch(
        *("torch.func:vjp", "torch.func:jvp", "torch.func:functional_call"),
        *("torch.jit:trace", "torch.jit:trace_module", "torch.jit:_get_trace_graph"),
        *("torch.jit:ScriptFunction.__call__", "torch.export:export", "torch.onnx:export"),
        *("torch.utils.dlpack:to_dlpack", "torch:to_dlpack"),
        why=f"weights that are no leaves, graphs of an example, scripted functions, DLPack: {FULL}",
    )
    def call_whole(self, call: Call) -> Any:
        """Call the function with whole tensors."""
        return self.on_whole(call.wrapped, call.args, call.kwargs)

    def on_whole(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `function` with whole tensors, and with modules plain inside.

        What it writes into the tensors is copied to the local rows.
        """
        with self.view.context.within(Code.PLAIN):
            if holds_parts(args, kwargs):
                return call_on_whole(function, args, kwargs)
            return function(*args, **kwargs)

    @patch(
        "torch.nn.functional:l1_loss",
        why="torch does not pass its weight on to `__torch_function__`",
        hot=True,
    )
    def l1_loss(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replace l1_loss by a function that gives a weighted one whole tensors."""
        whole = whole_inputs(plain)

        @functools.wraps(plain)
        def l1_loss(*args: Any, **kwargs: Any) -> Any:
            weight = args[5] if len(args) > 5 else kwargs.get("weight")
            return (plain if weight is None else whole)(*args, **kwargs)

        return l1_loss

    @patch(
        "torch.overrides:has_torch_function",
        why="code that asks it takes another path for subclasses, with other numbers at padding",
        hot=True,
    )
    def has_torch_function(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replace it by a function that treats a sharded batch as a plain tensor."""

        @stands_for(plain)
        def has_torch_function(relevant_args: Any, /) -> bool:
            others = [x for x in relevant_args if type(x) not in (ShardedTensor, Partial)]
            return bool(plain(relevant_args if torch.compiler.is_compiling() else others))

        return has_torch_function


def holds_parts(args: Any, kwargs: Any) -> bool:
    """Return whether an argument is, or contains, a sharded tensor or a partial sum."""
    return any(isinstance(x, (ShardedTensor, Partial)) for x in tree_leaves((args, kwargs)))


def whole_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` to be called with whole tensors."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return call_on_whole(function, args, kwargs)

    return call
