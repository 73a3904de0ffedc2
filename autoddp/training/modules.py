"""Modules, checkpoints, autograd functions and tensor subclasses with sharded tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autoddp import torch_internals
from autoddp.comm.accelerator import capturing
from autoddp.comm.context import Code
from autoddp.patching import Call, patch
from autoddp.training.compiled import CompiledCall
from autoddp.training.local_graph import Operators
from autoddp.training.whole_calls import FULL, WholeCalls, holds_parts
from autoddp.view import Partial, ShardedTensor, full
from autoddp.view.dispatch import call_on_whole
from autoddp.view.entry import ModuleEntry
from autoddp.view.redistribute import Boundary, Renamed

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class Modules(WholeCalls):
    """Batches cut by hand are sharded at the outermost call of a module."""

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
        feature, entry, context = self, self.entry, self.view.context
        parameters = nn.Module.parameters  # a script may answer `parameters()` in its own way

        # `self`: torch.export names parameters by it
        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return plain(self, *args, **kwargs)
            run = plain
            if self._compiled_call_impl is not None or "_orig_mod" in self._modules:
                if context.is_plain() and not holds_parts(args, kwargs):
                    return plain(self, *args, **kwargs)  # torch.export may be tracing
                run = feature.compiled(self)
            if self._backward_hooks and self._is_full_backward_hook is False:
                return feature.on_whole(functools.partial(run, self), args, kwargs)
            if entry.depth or context.is_plain() or not context.is_script():
                return run(self, *args, **kwargs)
            if _traced() or capturing() or next(parameters(self), None) is None:
                return run(self, *args, **kwargs)
            return entry.call(run, self, args, kwargs)

        return __call__

    @patch(
        "torch.autograd.graph:saved_tensors_hooks.__enter__",
        "torch.autograd.graph:saved_tensors_hooks.__exit__",
        why="a hook of the script sees what is saved for backward as of the whole batch",
    )
    def see_saved(self, call: Call) -> Any:
        """Compute on whole tensors while such a hook is on; those of torch see no shapes."""
        out = call.plain()
        if not getattr(call.instance.pack_hook, "__module__", "").startswith("torch."):
            entered = call.target.endswith("__enter__")
            self.view.context.depth[Code.FUNCTION] += 1 if entered else -1
        return out

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
            found = [x for x in args if isinstance(x, (ShardedTensor, Partial))]

            def run(*wholes: Any) -> Any:
                given = iter(wholes)
                plain = (
                    next(given) if isinstance(x, (ShardedTensor, Partial)) else x for x in args
                )
                with context.within(Code.PLAIN), context.within(Code.FUNCTION):
                    return bind(None, cls)(*plain, **{k: full(v) for k, v in kwargs.items()})

            if found:
                held = [x for x in found if type(x) is ShardedTensor]
                size = sum(x.numel() * x.dtype.itemsize for x in held)
                self.view.gathered(f"{cls.__name__}.apply", size)
            return call_on_whole(run, found, {}, untracked=True) if found else run()

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
        "torch.nn:DataParallel.__init__",
        why="a rank sees its own devices alone: the script's ids of devices are left out",
    )
    def use_visible_devices(self, call: Call) -> Any:
        """Let `nn.DataParallel` use the devices that this rank sees."""
        return call.changed(device_ids=None, output_device=None) if call.named else call.plain()

    @patch(
        "torch.utils.checkpoint:checkpoint",
        why="the reentrant form is an autograd function, which sees whole tensors; the other form "
        "gives the same gradients",
    )
    def checkpoint(self, call: Call) -> Any:
        """Compute a checkpoint of sharded tensors in the form that is not reentrant."""
        function, *rest = call.args
        reentrant = call.kwargs.get("use_reentrant")
        held = [x for x in tree_leaves((rest, call.kwargs)) if type(x) is ShardedTensor]
        if not held or not torch.is_grad_enabled():
            return call.plain()
        needs = any(
            isinstance(x, Tensor) and x.requires_grad for x in tree_leaves((rest, call.kwargs))
        )
        others = set(call.kwargs) - {"use_reentrant", "preserve_rng_state"}
        if reentrant is not False and (others or not needs):
            return call.plain()  # reentrant without a graph to hang on: torch warns
        given = {**call.kwargs, "use_reentrant": False}
        return _checkpointed(call.wrapped, function, rest, given)


def _checkpointed(plain: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call `checkpoint` without the sharded arguments, which it would save as whole tensors.

    An empty tensor shows it their device.
    """

    def again(_: Tensor, *others: Any, **named: Any) -> Any:
        pairs = zip(args, others, strict=True)
        return function(*(x if type(x) is ShardedTensor else y for x, y in pairs), **named)

    first = next(x for x in tree_leaves((args, kwargs)) if type(x) is ShardedTensor)
    where = torch.empty(0, device=first.device)
    return plain(again, where, *(None if type(x) is ShardedTensor else x for x in args), **kwargs)


def _traced() -> bool:
    return bool(torch_internals.traced()) or torch_internals.transform() is not None


def _seen(x: Any) -> Any:
    """Return what one process has: the whole of a batch, and Tensor for its class."""
    return Tensor if x is ShardedTensor or x is Partial else full(x)
