"""Functions that the user, or a table, marks as rowwise: they are computed on local rows."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import wrapt
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from autoddp.comm.accelerator import states
from autoddp.comm.context import Code
from autoddp.errors import BadInput
from autoddp.patching import ABSENT, Feature, find
from autoddp.torch_internals import dispatch_depth, transform
from autoddp.view import Partial, ShardedTensor, full
from autoddp.view.aliases import memory_of
from autoddp.view.redistribute import shard, with_mean_gradient
from autoddp.view.shard_sizes import Spec
from autoddp.view.sharded_tensor import wrap

if TYPE_CHECKING:
    from autoddp.effects.run import Run

# Each row of the result is made of the same row of every sharded argument, along dimension 0.
KNOWN = (
    "flash_attn.flash_attn_interface:flash_attn_func",
    "flash_attn.flash_attn_interface:flash_attn_kvpacked_func",
    "flash_attn.flash_attn_interface:flash_attn_qkvpacked_func",
    "xformers.ops.fmha:memory_efficient_attention",
    "apex.normalization.fused_layer_norm:FusedLayerNorm",
    "apex.normalization.fused_layer_norm:FusedRMSNorm",
    "torchvision.ops.deform_conv:deform_conv2d",
    "trl.kernels.chunked_logprob:ChunkedLogProbFunction",
)
DROPOUT = ("dropout_p", "p")  # a kernel's own draws are not those of the whole batch
F = TypeVar("F")
SIMPLE = (int, float, bool, str, type(None), nn.Parameter, ShardedTensor)


class Rowwise(Feature):
    """The option `--rowwise`, and the table of well-known kernels."""

    name = "rowwise"
    without = "kernels that torch does not know are computed whole, on every rank"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.names, self.report = run.options.rowwise, run.report
        self.waiting = set(self.names)

    def setup(self, undo: ExitStack) -> None:
        """Mark each name when its module is imported.

        Raises:
            BadInput: There is no such module, or nothing of that name in it.
        """
        for name in (*self.names, *KNOWN):
            module, _, path = name.partition(":")
            root = module.partition(".")[0]
            if name in self.waiting and not (path and _installed(root)):
                raise BadInput(
                    f"--rowwise is {name!r}; it takes package.module:Name of an installed package; "
                    "mark what is the script's own by @autoddp.rowwise"
                )
            wrapt.register_post_import_hook(partial(self._mark, undo, name), module)
        undo.callback(self._say_unused)

    def _mark(self, undo: ExitStack, name: str, module: ModuleType) -> None:
        asked = name in self.waiting
        owner, last, found = find(name, module, optional=True)
        if found is ABSENT:
            if asked:
                raise BadInput(f"--rowwise is {name!r}; {module.__name__} has no such name")
            return
        self.waiting.discard(name)
        made = mark(found, known=not asked)
        if made is not found:
            setattr(owner, last, made)
            undo.callback(setattr, owner, last, found)

    def _say_unused(self) -> None:
        for name in sorted(self.waiting):
            self.report.say_once("rowwise", f"--rowwise {name}", "its module was never imported")


def _installed(root: str) -> bool:
    return root not in ("", "__main__") and importlib.util.find_spec(root) is not None


def rowwise(kind: F) -> F:
    """Mark a function, an autograd function or a module class: each row is computed by itself.

    It is then computed on each rank's rows; without the mark it gathers. Tensors that it returns
    must have these rows along the first sharded argument's dimension; it may not draw random
    numbers, and a backward must be linear in the gradient. A replicated argument is cut likewise,
    if it has as many rows and dimensions and requires no gradient. `autoddp verify` tells whether
    all that is so. In one process nothing changes.

    Args:
        kind: What is marked.

    Raises:
        BadInput: It is none of these.

    Example:
        @autoddp.rowwise
        class Kernel(torch.autograd.Function): ...
    """
    return mark(kind)


def mark(kind: Any, known: bool = False) -> Any:
    """Have a function, an autograd function or a module class compute on local rows.

    Args:
        kind: What is marked.
        known: Whether `KNOWN` lists it; it then gathers in a call for which `_meant` is false.
    """
    if isinstance(kind, type) and issubclass(kind, torch.autograd.Function):

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return on_rows(super(kind, cls).apply, args, kwargs, known)

        kind.apply = classmethod(apply)
        return kind
    if isinstance(kind, type) and issubclass(kind, nn.Module):
        kind.forward = _marked(kind.forward, known)
        return kind
    if isinstance(kind, type) or not callable(kind):
        raise BadInput(
            f"rowwise got {kind!r}; it takes a function, an autograd.Function or a Module class"
        )
    return _marked(kind, known)


def _marked(function: Callable[..., Any], known: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return on_rows(function, args, kwargs, known)

    return run


def on_rows(function: Callable[..., Any], args: Any, kwargs: Any, known: bool = False) -> Any:
    """Call a rowwise function on local rows; what it returns with as many rows is sharded."""
    given, tree = tree_flatten((args, kwargs))
    lead = _lead(given)
    if lead is None or (known and not _meant(function, args, kwargs, given)):
        return function(*args, **kwargs)
    sizes = lead.sizes
    name = getattr(function, "__qualname__", repr(function))
    local = [_local(x, lead) for x in given]
    before = [torch.get_rng_state(), *states()]
    with lead.view.context.within(Code.PLAIN):
        local_args, local_kwargs = tree_unflatten(local, tree)
        out = function(*local_args, **local_kwargs)
    if not all(map(torch.equal, before, [torch.get_rng_state(), *states()])):
        raise BadInput(
            f"{name} draws random numbers, so that it is not rowwise; leave out the mark"
        )
    whole = {id(mine): x for mine, x in zip(local, given, strict=True) if isinstance(x, Tensor)}
    held = [x for x in given if type(x) is ShardedTensor]
    for x in held:
        x.wrote()

    def placed(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, nn.Parameter):
            return x
        if id(x) in whole:
            return whole[id(x)]
        if x.dim() <= lead.dim or x.shape[lead.dim] != sizes.local:
            raise BadInput(
                f"{name} is marked rowwise, but of {sizes.local} rows it returns the shape "
                f"{tuple(x.shape)}; leave out the mark"
            )
        if any(memory_of(x) == memory_of(y.local) for y in held):
            x = x.clone()  # what is written into it would not reach the whole of an argument
        return wrap(x, sizes.spec(tuple(x.shape), lead.dim))

    return tree_map(placed, out)


def _lead(given: list[Any]) -> Spec | None:
    """Return the placement of the first sharded argument; None if the call is to be plain."""
    held = [x.spec for x in given if type(x) is ShardedTensor]
    if not held or any(spec.sizes is not held[0].sizes for spec in held):
        return None
    context = held[0].view.context
    apart = transform() or held[0].view.in_function() or dispatch_depth() or context.in_thread()
    return None if apart or context.depth[Code.FUNCTION] or not held[0].sizes.smallest else held[0]


def _local(x: Any, lead: Spec) -> Any:
    """Return this rank's part of an argument: its rows, or all of what has no rows.

    What requires a gradient, or has other dimensions, is more likely a weight that is as long.
    """
    if type(x) is ShardedTensor:
        return x.local
    if not isinstance(x, Tensor):
        return x
    x, dim = full(x), lead.dim
    if x.requires_grad or x.dim() != len(lead.shape) or x.shape[dim] != lead.sizes.total:
        return with_mean_gradient(x, lead.view.group)
    return shard(x, lead.sizes, dim)


def _meant(function: Callable[..., Any], args: Any, kwargs: Any, given: list[Any]) -> bool:
    """Return whether a known kernel gets nothing but rows along 0, weights and numbers."""
    if not all(isinstance(x, SIMPLE) and not isinstance(x, Partial) for x in given):
        return False
    named = inspect.signature(function).bind(*args, **kwargs).arguments
    rows = [x for x in given if type(x) is ShardedTensor]
    return all(x.shard_dim == 0 for x in rows) and not any(named.get(p) for p in DROPOUT)
