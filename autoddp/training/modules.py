"""Where modules, checkpoints and autograd functions meet sharded tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autoddp import torch_internals
from autoddp.comm.accelerator import capturing
from autoddp.comm.context import Code
from autoddp.patching import Call, patch
from autoddp.training.compiled import CompiledCall, Compiler
from autoddp.training.whole_calls import FULL, WholeCalls
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
        self.compiler = Compiler(run.view)
        self.calls: WeakKeyDictionary[nn.Module, CompiledCall] = WeakKeyDictionary()

    def setup(self, undo: ExitStack) -> None:
        """Have the compiler's operators removed at the end."""
        undo.callback(self.compiler.operators.close)

    @patch(
        "torch.nn:Module.__call__",
        why="the outermost call that is given a batch as plain tensors shards them",
        hot=True,
    )
    def shard_inputs(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replace `__call__` by a plain function: a wrapper would cost ten times as much."""
        feature, entry, context = self, self.entry, self.view.context

        # `self`: torch.export names parameters by it
        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return plain(self, *args, **kwargs)
            run = plain
            if self._compiled_call_impl is not None or "_orig_mod" in self._modules:
                if context.is_plain() and not _holds_parts(args, kwargs):
                    return plain(self, *args, **kwargs)  # torch.export may be tracing
                run = feature.compiled(self)
            if self._backward_hooks and self._is_full_backward_hook is False:
                return feature.on_wholes(run, self, args, kwargs)
            if entry.depth or context.is_plain() or not context.is_script():
                return run(self, *args, **kwargs)
            if _traced() or capturing() or not _has_parameters(self):
                return run(self, *args, **kwargs)
            return entry.call(run, self, args, kwargs)

        return __call__

    def on_wholes(self, run: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module with a backward hook of the old kind, which hooks its output's node."""
        if not _holds_parts(args, kwargs):
            return run(module, *args, **kwargs)
        with self.view.context.within(Code.PLAIN):
            return call_on_whole(functools.partial(run, module), args, kwargs)

    @patch(
        "torch.autograd.graph:saved_tensors_hooks.__enter__",
        why="a hook of the script's sees what is saved for backward as of the whole batch",
    )
    def see_saved(self, call: Call) -> Any:
        """Compute on whole tensors while such a hook is on; those of torch's own see no shapes."""
        entered = call.plain()
        if not _of_torch(call.instance):
            self.view.context.depth[Code.FUNCTION] += 1
        return entered

    @patch("torch.autograd.graph:saved_tensors_hooks.__exit__", why="the hook's end")
    def see_no_more(self, call: Call) -> Any:
        if not _of_torch(call.instance):
            self.view.context.depth[Code.FUNCTION] -= 1
        return call.plain()

    def compiled(self, module: nn.Module) -> Callable[..., Any]:
        """Return what calls a compiled module."""
        found = self.calls.get(module)
        if found is None:  # compiled before the patches were there, or a copy
            original = module._modules.get("_orig_mod")
            call = module._call_impl if original is None else original
            name = type(module if original is None else original).__name__
            found = self.calls[module] = self.compiler.compiled(call, name, {})
        return lambda _, *args, **kwargs: found(*args, **kwargs)

    @patch("torch.autograd:Function.apply", why=f"a custom autograd function: {FULL}", hot=True)
    def apply_to_whole(self, plain: Any) -> Any:
        """Give the script's own functions whole tensors; ours are the boundaries themselves."""
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
        *("torch.jit:ScriptFunction.__call__", "torch.utils.dlpack:to_dlpack", "torch:to_dlpack"),
        why=f"a scripted function, and the first form of DLPack: {FULL}",
    )
    def take_whole(self, call: Call) -> Any:
        """Call the function with whole tensors; what it writes into them reaches the rows."""
        if not _holds_parts(call.args, call.kwargs):
            return call.plain()
        return call_on_whole(call.wrapped, call.args, call.kwargs)

    @patch("torch:Tensor.as_subclass", why=f"a tensor of another class: {FULL}", hot=True)
    def as_subclass(self, plain: Any) -> Any:
        """Give the other class the whole batch: what it does with that is its own affair."""

        def as_subclass(x: Tensor, cls: type[Tensor]) -> Tensor:
            return plain(full(x), _as_seen(cls))

        return as_subclass

    @patch(
        "torch:Tensor._make_subclass",
        "torch:Tensor.__new__",
        why=f"a tensor of another class, made of a batch: {FULL}",
        hot=True,
    )
    def make_subclass(self, plain: Any) -> Any:
        """Give the other class the whole batch, as by `Image(x)` without a constructor."""

        # a signature that torch.compile's own stand-in accepts
        def make(*args: Any, **kwargs: Any) -> Any:
            cls, *rest = args
            return plain(
                _as_seen(cls),
                *map(full, rest),
                **{name: full(value) for name, value in kwargs.items()},
            )

        return staticmethod(make)

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
        if reentrant is False:
            return _checkpointed(call.wrapped, function, rest, call.kwargs)
        needs = any(
            isinstance(x, Tensor) and x.requires_grad for x in tree_leaves((rest, call.kwargs))
        )
        if not needs or set(call.kwargs) - {"use_reentrant", "preserve_rng_state"}:
            return call.plain()  # reentrant without a graph to hang on: torch warns
        given = {**call.kwargs, "use_reentrant": False}
        return _checkpointed(call.wrapped, function, rest, given)


class _Held:
    """A sharded argument of a checkpoint, which torch would save as it saves a whole tensor."""

    def __init__(self, tensor: ShardedTensor) -> None:
        self.tensor = tensor


def _checkpointed(plain: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call `checkpoint` with sharded arguments put aside; an empty tensor tells their device."""

    def shown(x: Any) -> Any:
        return x.tensor if type(x) is _Held else x

    def held(x: Any) -> Any:
        return _Held(x) if type(x) is ShardedTensor else x

    def again(_: Tensor, *given: Any, **named: Any) -> Any:
        return function(*map(shown, given), **{name: shown(x) for name, x in named.items()})

    first = next(x for x in tree_leaves((args, kwargs)) if type(x) is ShardedTensor)
    where = torch.empty(0, device=first.device)
    return plain(again, where, *map(held, args), **{name: held(x) for name, x in kwargs.items()})


def _holds_parts(args: Any, kwargs: Any) -> bool:
    """Return whether an argument is, or holds, what ranks have in parts."""
    return any(isinstance(x, (ShardedTensor, Partial)) for x in tree_leaves((args, kwargs)))


def _has_parameters(module: nn.Module) -> bool:
    """Return whether a module has parameters; most show it by their own, or have nothing at all.

    A script's module may answer `parameters()` in a way of its own, which is not asked.
    """
    own = module._parameters
    if not own and not module._modules:
        return False
    mine = any(x is not None for x in own.values())
    return mine or next(nn.Module.parameters(module), None) is not None


def _of_torch(hooks: Any) -> bool:
    """Return whether hooks of saved tensors are torch's own: those of a checkpoint."""
    return getattr(hooks.pack_hook, "__module__", "").startswith("torch.")


def _traced() -> bool:
    return bool(torch_internals.traced()) or torch_internals.transform() is not None


def _as_seen(cls: type) -> type:
    """Return Tensor for the class of a batch, as the script may have it from `type(batch)`."""
    return Tensor if cls is ShardedTensor or cls is Partial else cls
