"""Modules, compiled ones too, and the functions that get whole tensors instead of sharded ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from threading import get_ident
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autoddp.comm.context import Code
from autoddp.patching import Call, patch, stands_for
from autoddp.training.checkpoints import Checkpoints
from autoddp.training.compiled import CompiledCall
from autoddp.training.handed_over import HandedOver
from autoddp.training.leaves import with_setter
from autoddp.training.local_graph import Operators
from autoddp.view import Partial, ShardedTensor, full
from autoddp.view.dispatch import FIRST, call_on_whole, fall_back
from autoddp.view.entry import ModuleEntry
from autoddp.view.redistribute import Boundary, Renamed

if TYPE_CHECKING:
    from autoddp.effects.run import Run

FULL = "it sees the whole batch, as Python does not ask __torch_function__ there"
SPLIT = (ShardedTensor, Partial)
TRANSFORMS = ("vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "functionalize")


class Modules(Checkpoints, HandedOver):
    """Batches cut by hand are sharded at the outermost call of a module.

    Functions for which Python does not ask `__torch_function__` get whole tensors.
    """

    name = "modules"
    without = "a batch that was cut by hand is computed whole, on every rank"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.view = run.view
        self.entry = ModuleEntry(run.view)
        self.operators = Operators(run.view.group)
        self.calls: WeakKeyDictionary[nn.Module, CompiledCall] = WeakKeyDictionary()

    def setup(self, undo: ExitStack) -> None:
        """Have the compiler's operators removed at the end."""
        undo.callback(self.operators.close)

    @patch(
        "torch.nn:Module.__call__",
        why="plain tensors of a batch are sharded at the outermost call of a module",
        hot=True,
    )
    def shard_inputs(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replace `__call__` by a plain function: a wrapper would cost ten times as much."""
        feature, entry, context, view = self, self.entry, self.view.context, self.view
        known = entry.dims

        # `self`: torch.export names parameters by it
        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return plain(self, *args, **kwargs)
            compiled = self._compiled_call_impl is not None or "_orig_mod" in self._modules
            if compiled or self._backward_hooks:
                return feature.special(plain, self, args, kwargs)
            if entry.depth and not entry.rows:
                return plain(self, *args, **kwargs)
            # ranks that share no work leave what they know to torch: what follows costs time, too
            if view.alike and ref(self) in known and get_ident() == context.thread:
                depth, entry.depth = entry.depth, 1
                try:
                    return plain(self, *args, **kwargs)
                finally:
                    entry.depth = depth
            return entry.call(plain, self, args, kwargs)

        return __call__

    def special(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module that is compiled, or that has hooks on its backward."""
        run = plain
        if _is_compiled(module):
            alone = self.view.context.is_plain() or self.view.replicates
            if alone and not holds_parts(args, kwargs):
                return plain(module, *args, **kwargs)  # torch.export may be tracing
            run = self.compiled(module)
        if module._backward_hooks and module._is_full_backward_hook is False:
            return self.on_whole(functools.partial(run, module), args, kwargs)
        return self.entry.call(run, module, args, kwargs, shards=run is not plain)

    @patch(
        "torch.autograd.graph:saved_tensors_hooks.__enter__",
        "torch.autograd.graph:saved_tensors_hooks.__exit__",
        why="a hook of the script sees what is saved for backward as of the whole batch",
    )
    def see_saved(self, call: Call) -> Any:
        """Compute on whole tensors while such a hook is on; those of torch see no shapes."""
        out = call.plain()
        if not str(getattr(call.instance.pack_hook, "__module__", "")).startswith("torch."):
            entered = call.target.endswith("__enter__")
            self.view.context.depth[Code.FUNCTION] += 1 if entered else -1
        return out

    @patch(
        "torch.autograd.forward_ad:enter_dual_level",
        "torch.autograd.forward_ad:exit_dual_level",
        why="forward-mode gradients are those of the whole batch",
    )
    def see_dual(self, call: Call) -> Any:
        """Compute on whole tensors at such a level: a batch's rows would have no tangents."""
        out = call.plain()
        self.view.context.depth[Code.FUNCTION] += 1 if "enter" in call.target else -1
        return out

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

        # not before it is needed: torch has one cache of compiled code for a function
        whole = functools.cache(lambda: plain(model, **given))

        @functools.wraps(model)
        def run(*args: Any, **kwargs: Any) -> Any:
            alone = self.view.replicates and not holds_parts(args, kwargs)
            return (whole() if alone else found)(*args, **kwargs)

        return run

    def compiled(self, module: nn.Module) -> Callable[..., Any]:
        """Return what calls a compiled module."""
        found = self.calls.get(module)
        if found is None:  # compiled before the patches were there, or a copy
            original = module._modules.get("_orig_mod")
            call = module._call_impl if original is None else original
            found = self.calls[module] = CompiledCall(self.view, self.operators, call, {})
        return lambda _, *args, **kwargs: found(*args, **kwargs)

    @patch("torch.autograd:Function.apply", why=f"a custom autograd function: {FULL}", hot=True)
    def apply_to_whole(self, plain: Any) -> Any:
        """Call functions of the script with whole tensors; those of autoddp convert them."""
        context = self.view.context
        bind = vars(torch.autograd.Function)["apply"].__get__  # a descriptor, in C in some versions

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or issubclass(cls, (Boundary, Renamed)):
                return bind(None, cls)(*args, **kwargs)
            found = [x for x in args if isinstance(x, SPLIT)]

            def run(*wholes: Any) -> Any:
                given = iter(wholes)
                plain = (next(given) if isinstance(x, SPLIT) else x for x in args)
                with context.within(Code.PLAIN), context.within(Code.FUNCTION):
                    return bind(None, cls)(*plain, **{k: full(v) for k, v in kwargs.items()})

            if not found:
                return run()
            return fall_back(run, found, {}, f"{cls.__name__}.apply", untracked=True)

        return classmethod(apply)

    @patch(
        *("torch:Tensor.as_subclass", "torch:Tensor._make_subclass", "torch:Tensor.__new__"),
        why=f"a tensor of another class, made of a batch: {FULL}",
        hot=True,
    )
    def make_subclass(self, plain: Any) -> Any:
        """Give the other class the whole batch, as by `Image(x)` without a constructor."""

        # a signature that torch.compile's own stand-in accepts
        def make(*args: Any, **kwargs: Any) -> Any:
            return plain(*map(_seen, args), **{name: _seen(x) for name, x in kwargs.items()})

        return make if isinstance(plain, MethodDescriptorType) else staticmethod(make)

    @patch(
        "torch:Tensor.data", why=f"the memory of a plain tensor, made a batch's: {FULL}", hot=True
    )
    def set_data(self, plain: Any) -> Any:
        """Give a plain tensor the memory of the whole batch."""
        return with_setter(plain, lambda x, new: new if isinstance(x, SPLIT) else _seen(new))

    @patch(
        "torch.nn:DataParallel.__init__",
        why="a rank sees its own devices alone: the script's ids of devices are left out",
    )
    def use_visible_devices(self, call: Call) -> Any:
        """Let `nn.DataParallel` use the devices that this rank sees."""
        return call.changed(device_ids=None, output_device=None) if call.named else call.plain()

    @patch(
        *(f"torch.func:{name}" for name in TRANSFORMS),
        "torch:vmap",
        why=f"a transform of torch.func: {FULL}",
    )
    def transform(self, call: Call) -> Any:
        """Give whole tensors to the function that the transform returns."""
        made = call.plain()

        @functools.wraps(made)
        def transformed(*args: Any, **kwargs: Any) -> Any:
            return call_on_whole(made, args, kwargs)

        return transformed

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

        @functools.wraps(plain)
        def l1_loss(*args: Any, **kwargs: Any) -> Any:
            weight = args[5] if len(args) > 5 else kwargs.get("weight")
            return plain(*args, **kwargs) if weight is None else call_on_whole(plain, args, kwargs)

        return l1_loss

    @patch(
        "torch.overrides:has_torch_function",
        why="code that asks it takes another path for subclasses, with other numbers at padding",
        hot=True,
    )
    def has_torch_function(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replace it by a function that treats a sharded batch as a plain tensor."""
        known = {ShardedTensor, Partial, *FIRST}

        @stands_for(plain)
        def has_torch_function(relevant_args: Any, /) -> bool:
            others = [x for x in relevant_args if type(x) not in known]
            return bool(plain(relevant_args if torch.compiler.is_compiling() else others))

        return has_torch_function


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


def _seen(x: Any) -> Any:
    """Return what one process has: the whole of a batch, and Tensor for its class."""
    return Tensor if x is ShardedTensor or x is Partial else full(x)


def holds_parts(args: Any, kwargs: Any) -> bool:
    """Return whether an argument is, or contains, a sharded tensor or a partial sum."""
    return any(isinstance(x, SPLIT) for x in tree_leaves((args, kwargs)))
