"""Modules run on this rank's rows where that is proven to be exact."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import wrapt
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autoddp import torch_internals
from autoddp.comm.accelerator import capturing
from autoddp.comm.context import Code
from autoddp.patching import Call, patch
from autoddp.training.whole_calls import FULL, WholeCalls
from autoddp.view import Partial, Rows, full
from autoddp.view.boundaries import BOUNDARIES, Renamed
from autoddp.view.calls import Calls
from autoddp.view.proof.functions import by_rows
from autoddp.view.proof.trial import DECIDES, Refused
from autoddp.view.proof.verdicts import hooks_node
from autoddp.view.rows import of_the_whole

if TYPE_CHECKING:
    from autoddp.effects.run import Run

CHECKPOINT = (
    "use_reentrant",
    "context_fn",
    "determinism_check",
    "debug",
    "preserve_rng_state",
    "early_stop",
)
# Not this module: `__call__` below is traced, and plain then.
UNTRACED = (
    *("autoddp.view", "autoddp.report", "autoddp.effects"),
    *(
        "autoddp.comm.accelerator",
        "autoddp.comm.channel",
        "autoddp.comm.collective_check",
        "autoddp.comm.line",
        "autoddp.comm.tree",
    ),
    *(
        "autoddp.comm.passed",
        "autoddp.comm.position",
        "autoddp.comm.rpc",
        "autoddp.comm.signal_sync",
    ),
)


class Modules(WholeCalls):
    """Split calls: an outermost call runs by rows if proven row-wise, else its parts are tried."""

    name = "modules"
    without = "every model runs whole, on every rank"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.view = run.view
        names = [
            name.partition(":")[2] for name in run.options.disable if name.startswith("modules:")
        ]
        self.calls = Calls(run.view, tuple(names))

    def setup(self, undo: ExitStack) -> None:
        """Keep what decides how a module runs out of what torch.compile traces."""
        wrapt.register_post_import_hook(_leave_out, "torch._dynamo.trace_rules")

    @patch(
        "torch.nn:Module.__call__", why="runs on this rank's rows what is proven row-wise", hot=True
    )
    def split_calls(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replace `__call__` by a plain function: a wrapper would cost ten times as much."""
        calls, context = self.calls, self.view.context

        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or context.is_plain():
                return plain(module, *args, **kwargs)
            if not context.is_script() or _traced() or capturing():
                return plain(module, *args, **kwargs)
            if hooks_node(module) or torch_internals.dispatch_depth():
                return calls.on_wholes(functools.partial(plain, module), args, kwargs)
            if not _has_parameters(module):
                return plain(module, *args, **kwargs)
            return calls.call(module, lambda *a, **k: plain(module, *a, **k), args, kwargs)

        return __call__

    @patch(
        "torch.nn:Module.register_forward_hook",
        "torch.nn:Module.register_forward_pre_hook",
        "torch.nn:Module.register_full_backward_hook",
        "torch.nn:Module.register_full_backward_pre_hook",
        "torch.nn:Module.register_backward_hook",
        why="a hook sees the whole batch: a module with one runs by its parts",
    )
    def note_hook(self, call: Call) -> Any:
        """Note that hooks have changed: verdicts are looked up again at the next call."""
        self.calls.verdicts.hooks += 1
        return call.plain()

    @patch(
        "torch.nn:Module.__setattr__",
        why="what is set on a module may change what its forward does: it is proven anew",
        hot=True,
    )
    def note_setting(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Note the setting alone, to be looked at when the module is called."""
        note = self.calls.verdicts.settings.note

        def __setattr__(module: nn.Module, name: str, value: Any) -> None:
            if not torch.compiler.is_compiling():
                note(module, name, value)
            plain(module, name, value)

        return __setattr__

    @patch(
        "torch.nn:Module.add_module",
        "torch.nn:Module.__delattr__",
        why="layers that come or go change what a forward does: it is proven anew",
    )
    def note_layer(self, call: Call) -> Any:
        self.calls.verdicts.settings.changes += 1
        return call.plain()

    @patch(
        "torch:Tensor.register_hook",
        "torch:Tensor.retain_grad",
        why="what a forward keeps of a gradient is the whole batch's: it runs by its parts",
    )
    def refuse_hook(self, call: Call) -> Any:
        """End a trial that would show the gradient of a rank's rows to the script."""
        if self.view.context.depth[Code.PROOF]:
            raise Refused("it looks at gradients of the batch")
        return call.plain()

    @patch(
        "torch:Tensor.numpy",
        "torch:Tensor.tolist",
        why="what Python decides by values of a batch is of all its rows: it runs by its parts",
        hot=True,
    )
    def refuse_values(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """End a trial that hands values of its rows to Python, past what a mode sees."""
        view = self.view

        @functools.wraps(plain)
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if view.context.depth[Code.PROOF] and view.holds(tensor):
                raise Refused(DECIDES)
            return plain(tensor, *args, **kwargs)

        return read

    @patch("torch.autograd:Function.apply", why=f"a custom autograd function: {FULL}", hot=True)
    def apply_to_whole(self, plain: Any) -> Any:
        """Give the script's own functions whole tensors; ours are the boundaries themselves.

        A trial sees no backward, so that one which may mix rows is no part of a split module.
        """
        view, context = self.view, self.view.context
        bind = vars(torch.autograd.Function)["apply"].__get__  # a descriptor, in C in some versions

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if issubclass(cls, (*BOUNDARIES, Renamed)):
                return bind(None, cls)(*args, **kwargs)
            if torch.compiler.is_compiling():
                return bind(None, cls)(*args, **kwargs)
            held = any(view.holds(x) for x in args if isinstance(x, Tensor))
            if held and context.depth[Code.PROOF] and not by_rows(cls):
                raise Refused(f"the backward of {cls.__name__} may mix rows")
            found = [x for x in args if isinstance(x, (Rows, Partial))]

            def run(*wholes: Any) -> Any:
                given = iter(wholes)
                plain = (next(given) if isinstance(x, (Rows, Partial)) else x for x in args)
                with context.within(Code.PLAIN), context.within(Code.FUNCTION):
                    return bind(None, cls)(*plain, **{k: full(v) for k, v in kwargs.items()})

            return of_the_whole(run, found, {}, unseen=True) if found else run()

        return classmethod(apply)

    @patch(
        "torch.utils.dlpack:to_dlpack", "torch:to_dlpack", why=f"the first form of DLPack: {FULL}"
    )
    def show_whole(self, call: Call) -> Any:
        """Show the whole batch: else DLPack shows memory that nobody has."""
        return self.take_whole(call)

    @patch("torch.jit:ScriptFunction.__call__", why=f"a scripted function: {FULL}")
    def take_whole(self, call: Call) -> Any:
        """Call the function with whole tensors; what it writes into them reaches the rows."""
        found = any(isinstance(x, (Rows, Partial)) for x in tree_leaves((call.args, call.kwargs)))
        return of_the_whole(call.wrapped, call.args, call.kwargs) if found else call.plain()

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
        why="what is recomputed in backward belongs to the split call that it was first "
        "computed in",
    )
    def checkpoint(self, call: Call) -> Any:
        """Run the checkpoint by rows in a split call; elsewhere like a module, or whole."""
        function, *rest = call.args
        context = self.view.context
        if not context.on_rows():
            if isinstance(function, nn.Module) and not context.is_plain() and context.is_script():
                own = {k: v for k, v in call.kwargs.items() if k in CHECKPOINT}
                given = {k: v for k, v in call.kwargs.items() if k not in CHECKPOINT}

                def run(*a: Any, **k: Any) -> Any:
                    return call.wrapped(self._again(function), *a, **own, **k)

                return self.calls.call(function, run, tuple(rest), given, parts=False)
            whole = [full(x) for x in rest]
            with context.within(Code.PLAIN):
                return call.wrapped(function, *whole, **call.kwargs)
        return call.wrapped(self._again(function), *rest, **call.kwargs)

    def _again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `function` to run in the present split call whenever it is called."""
        region = self.view.region
        if region is None:
            return function
        drawn = region.drawn

        def again(*args: Any, **kwargs: Any) -> Any:
            if self.view.region is region:  # the first time: we are inside already
                return function(*args, **kwargs)
            with self.calls.enter(region, drawn):
                return function(*args, **kwargs)

        return again


def _has_parameters(module: nn.Module) -> bool:
    """Return whether a module has parameters; most show it by their own, or have nothing at all.

    A script's module may answer `parameters()` in a way of its own, which is not asked.
    """
    own = module._parameters
    if not own and not module._modules:
        return False
    mine = any(x is not None for x in own.values())
    return mine or next(nn.Module.parameters(module), None) is not None


def _traced() -> bool:
    return bool(torch_internals.traced()) or torch_internals.transform() is not None


def _as_seen(cls: type) -> type:
    """Return Tensor for the class of a batch, as the script may have it from `type(batch)`."""
    return Tensor if cls is Rows or cls is Partial else cls


def _leave_out(rules: ModuleType) -> None:
    """Break graphs at our modules where Dynamo can: tracing fails in what it does not know."""
    for name in UNTRACED:
        rules.add(name)
