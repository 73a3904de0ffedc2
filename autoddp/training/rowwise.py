"""Functions that the user marks as rowwise: they are computed on local rows."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import wrapt
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from autoddp.comm.accelerator import states
from autoddp.comm.context import Code
from autoddp.errors import BadInput
from autoddp.patching import Feature
from autoddp.torch_internals import dispatch_depth, in_function, transform
from autoddp.view import ShardedTensor, full
from autoddp.view.redistribute import shard, with_mean_gradient
from autoddp.view.shard_sizes import Spec
from autoddp.view.sharded_tensor import wrap

if TYPE_CHECKING:
    from autoddp.effects.run import Run

F = TypeVar("F")


class Rowwise(Feature):
    """The option `--rowwise`."""

    name = "rowwise"
    without = "what `--rowwise` names is computed whole, on every rank"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.names, self.report = run.options.rowwise, run.report
        self.waiting = set(self.names)

    def setup(self, undo: ExitStack) -> None:
        """Mark each name when its module is imported.

        Raises:
            BadInput: There is no such module, or nothing of that name in it.
        """
        for name in self.names:
            module, _, path = name.partition(":")
            _check(name, module.partition(".")[0], path)
            wrapt.register_post_import_hook(functools.partial(self._mark, undo, name), module)
        undo.callback(self._say_unused)

    def _mark(self, undo: ExitStack, name: str, owner: Any) -> None:
        self.waiting.discard(name)
        for each in name.partition(":")[2].split("."):
            if not hasattr(owner, each):
                raise BadInput(f"--rowwise is {name!r}; there is no {each!r}")
            holder, owner = owner, getattr(owner, each)
        made = rowwise(owner)
        if made is not owner:
            setattr(holder, each, made)
            undo.callback(setattr, holder, each, owner)

    def _say_unused(self) -> None:
        for name in sorted(self.waiting):
            self.report.say_once("rowwise", f"--rowwise {name}", "its module was never imported")


def _check(name: str, root: str, path: str) -> None:
    if root == "__main__":
        raise BadInput(
            f"--rowwise is {name!r}, which is the script's own; mark it there by @autoddp.rowwise"
        )
    if not root or not path:
        raise BadInput(f"--rowwise is {name!r}; it takes package.module:Name")
    if importlib.util.find_spec(root) is None:
        raise BadInput(f"--rowwise is {name!r}; there is no module {root!r}")


def rowwise(kind: F) -> F:
    """Mark a function, an autograd function or a module class whose rows are independent.

    Each rank then computes it on its own rows, without a gather. The tensors that it returns must
    have these rows along the shard dimension of the first sharded argument. It must not draw random
    numbers, and its backward must be linear in the gradient. A replicated argument with as many
    rows and dimensions, and without a gradient, is sharded, too. `autoddp verify` checks all of
    this. In one process the mark changes nothing.

    Args:
        kind: The function or class.

    Raises:
        BadInput: `kind` is none of these.

    Example:
        @autoddp.rowwise
        class Kernel(torch.autograd.Function): ...
    """
    marked: Any = kind
    if isinstance(kind, type) and issubclass(kind, torch.autograd.Function):

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return on_rows(super(marked, cls).apply, args, kwargs)

        marked.apply = classmethod(apply)
    elif isinstance(kind, type) and issubclass(kind, nn.Module):
        marked.forward = _marked(marked.forward)
    elif isinstance(kind, type) or not callable(kind):
        raise BadInput(
            f"rowwise is given {kind!r}; it takes a function or a class of torch's kinds"
        )
    else:
        marked = _marked(kind)
    return marked


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return on_rows(function, args, kwargs)

    return run


def on_rows(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a rowwise function on local rows; what it returns with as many rows is sharded."""
    given, tree = tree_flatten((args, kwargs))
    lead = _lead(given)
    if lead is None:
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
        x.refresh()

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
        memory = x.untyped_storage().data_ptr()
        shows = [y for y in held if y.local.untyped_storage().data_ptr() == memory]
        spec = sizes.spec(tuple(x.shape), lead.dim)
        return wrap(x, spec, shows[0].aliases if shows else None)

    return tree_map(placed, out)


def _lead(given: list[Any]) -> Spec | None:
    """Return the placement of the first sharded argument; None for a plain call."""
    held = [x.spec for x in given if type(x) is ShardedTensor]
    if not held or any(spec.sizes is not held[0].sizes for spec in held):
        return None
    context = held[0].view.context
    apart = transform() or in_function() or dispatch_depth() or context.in_thread()
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
