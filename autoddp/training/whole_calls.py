"""Functions that are called with whole batches: compiled, transformed, traced or exported ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from autoddp.comm.context import Code
from autoddp.patching import Call, Feature, patch, stands_for
from autoddp.torch_internals import plain_tensors
from autoddp.view import Partial, ShardedTensor, full

if TYPE_CHECKING:
    from weakref import WeakKeyDictionary

    from autoddp.training.compiled import CompiledCall, Compiler
    from autoddp.view.state import View

FULL = "it sees the whole batch, as Python does not ask __torch_function__ there"
TRANSFORMS = ("vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "functionalize")


class WholeCalls(Feature):
    """Patches of what asks no tensor's class: whole tensors go in, and modules are plain inside."""

    view: View
    compiler: Compiler
    calls: WeakKeyDictionary[nn.Module, CompiledCall]  # of compiled modules

    @patch("torch:compile", why="a graph is compiled for the rows of each rank")
    def compile(self, call: Call) -> Any:
        """Note how a module is to be compiled, which it is when it is called."""
        given = dict(call.kwargs)
        model = call.args[0] if call.args else given.pop("model", None)
        if given.get("disable"):
            return call.plain()
        if model is None:
            return lambda model: self._compiled(call.wrapped, model, given)
        return self._compiled(call.wrapped, model, given)

    def _compiled(self, plain: Callable[..., Any], model: Any, given: dict[str, Any]) -> Any:
        if isinstance(model, nn.Module):
            made = plain(model, **given)
            self.calls[made] = self.compiler.compiled(model, type(model).__name__, given)
            return made
        owner = getattr(model, "__self__", None)
        if isinstance(owner, nn.Module) and model == owner._call_impl:  # module.compile()
            self.calls[owner] = self.compiler.compiled(model, type(owner).__name__, given)
            return plain(model, **given)
        name = getattr(model, "__name__", type(model).__name__)
        found = self.compiler.compiled(model, name, given)

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
        *("torch.export:export", "torch.onnx:export"),
        why="weights that are no leaves, and graphs of an example: of whole tensors, on every rank",
    )
    def call_whole(self, call: Call) -> Any:
        """Call the function with whole tensors, and with modules plain inside."""
        args, kwargs = _gathered((call.args, call.kwargs))
        with self.view.context.within(Code.PLAIN):
            return call.wrapped(*args, **kwargs)

    @patch(
        "torch.nn.functional:l1_loss",
        why="its weight is lost where a tensor's class is asked, as torch does not hand it on",
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
        why="who asks it takes another way where it says yes, with other numbers at padded places",
        hot=True,
    )
    def has_torch_function(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replace it by a function that says of a batch held by rows what it says of a tensor."""

        @stands_for(plain)
        def has_torch_function(relevant_args: Any, /) -> bool:
            others = [x for x in relevant_args if type(x) not in (ShardedTensor, Partial)]
            return bool(plain(relevant_args if torch.compiler.is_compiling() else others))

        return has_torch_function


def whole_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` to be called with whole tensors."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        whole_args, whole_kwargs = _gathered((args, kwargs))
        return function(*whole_args, **whole_kwargs)

    return call


def _gathered(args: Any) -> Any:
    with plain_tensors():
        return tree_map_only((ShardedTensor, Partial), full, args)
