"""Attributes and metadata of the whole batch, its gradient, hooks and `.data`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autoddp.errors import BadInput
from autoddp.own_hooks import own_hooks
from autoddp.torch_internals import plain_tensors
from autoddp.view.aliases import Base
from autoddp.view.local_call import DETACHED, MAYBE, LocalCall
from autoddp.view.redistribute import Renamed, node_name, shard, with_node_name
from autoddp.view.rules.operands import view_or_copy
from autoddp.view.rules.partial import copy_or_cast, unread
from autoddp.view.sharded_tensor import Partial, ShardedTensor, full, is_sharded
from autoddp.view.table import attribute_rule, part_of_complex, rule, uncached_rule


@attribute_rule(
    *("shape", "dtype", "device", "ndim", "layout", "itemsize", "nbytes", "is_cuda", "is_cpu"),
    *("is_sparse", "is_quantized", "is_meta", "is_nested", "is_mps", "is_xpu", "is_mtia"),
    *("is_maia", "is_xla", "is_vulkan", "is_ipu"),
)
@uncached_rule(
    *("size", "dim", "ndimension", "numel", "nelement", "__len__", "is_floating_point"),
    *("is_complex", "stride", "is_contiguous", "element_size", "is_signed", "get_device"),
    "is_inference",
)
def metadata(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Read metadata from the wrapper, which has the shape of the whole batch."""
    if func is Tensor.__len__ and isinstance(args[0], Partial):
        return NotImplemented  # len() of a 0-dim tensor raises
    with plain_tensors():
        return func(*args, **kwargs)


@uncached_rule("is_pinned", "is_shared", "record_stream")
def memory(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Ask for the kind of a batch's memory, or record its use: local rows and gathered copies.

    It is pinned or shared if one of them is: the script may have pinned a gathered copy.
    """
    me, *rest = args
    if not is_sharded(me):
        return NotImplemented
    whole = me.based.root.whole
    held = [me.local] if whole is None else [me.local, whole]
    found = [func(x, *rest, **kwargs) for x in held]
    return any(found) if func is not Tensor.record_stream else None


@attribute_rule("grad_fn", "is_leaf")
def graph(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return `grad_fn` or `is_leaf` of the local tensor, with the node name of one process."""
    me = args[0]
    if isinstance(me, Partial):
        if not me.unread:
            return func(me.full(), *args[1:])
        if func.__self__.__name__ == "grad_fn" and me.node != node_name(me.local):
            return func(with_node_name(Renamed, me.node).apply(me.local))
    return func(me.local, *args[1:])


@uncached_rule("__repr__")
def represent(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Print a leaf as a leaf, which the gathered batch is not."""
    me = args[0]
    if not is_sharded(me) or not me.local.requires_grad or not me.local.is_leaf:
        return NotImplemented
    return func(me.full().detach().requires_grad_(), **kwargs)


@attribute_rule("requires_grad")
def requires_grad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Read `requires_grad` from the local tensor; set it on a sharded one only."""
    me = args[0]
    if len(args) > 1 and isinstance(args[1], bool):
        if not isinstance(me, ShardedTensor):
            return NotImplemented
        if not me.local.is_leaf:
            me.local.requires_grad = args[1]  # torch raises its own error
        _set_requires_grad(me, args[1])
        return None
    if isinstance(me, Partial) and not me.unread:
        return func(me.full())
    return me.local.requires_grad


@uncached_rule("requires_grad_")
def requires_grad_(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Set whether an input needs a gradient; its local rows are a leaf on this rank."""
    me, *rest = args
    if not is_sharded(me):
        return NotImplemented
    _set_requires_grad(me, kwargs.get("requires_grad", rest[0] if rest else True))
    return me


def _set_requires_grad(me: ShardedTensor, yes: bool) -> None:
    local = me.local
    fresh = yes and not local.requires_grad
    local.requires_grad_(yes)
    if fresh:
        me.begin_graph()
    elif not yes:
        me.based.drop_graph()
    if fresh and not hasattr(local, "_autoddp_rows"):  # a hook outlives requires_grad_(False)
        view = me.sizes.view
        local._autoddp_rows = True  # type: ignore[attr-defined]  # excludes it from averaging
        # so that the script reads .grad at true scale
        with own_hooks():
            local.register_hook(lambda g: g / view.group.size)


@uncached_rule("retain_grad")
def retain_grad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Retain the gradient of the local tensor; `.grad` returns it at true scale."""
    me = args[0]
    if not _has_graph(me) or me.local.is_leaf:
        return None if is_sharded(me) else NotImplemented
    if getattr(me.local, "_autoddp_retains", None) is None:  # a second call does nothing
        _retain(me.local, me.owner.group.size)
    return None


@attribute_rule("retains_grad")
def retains_grad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return whether the gradient is retained; that of a leaf is there anyway."""
    return getattr(getattr(args[0], "local", None), "_autoddp_retains", None) is not None


def _retain(holder: Any, size: int) -> None:
    """Keep the gradient at true scale in a hook that runs after all others, as torch's does."""
    before = getattr(holder, "_autoddp_retains", None)
    if before is not None:
        before.remove()

    def keep(g: Tensor) -> None:
        before = getattr(holder, "_autoddp_grad", None)
        local = g.detach() / size
        holder._autoddp_grad = local if before is None else before + local

    with own_hooks():
        holder._autoddp_retains = holder.register_hook(keep)


def _register(holder: Any, hook: Any, size: int) -> Any:
    handle = holder.register_hook(hook)
    if getattr(holder, "_autoddp_retains", None) is not None:
        _retain(holder, size)
    return handle


@attribute_rule("grad")
def grad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Read or set the gradient of the batch, sharded and at true scale."""
    me = args[0]
    if isinstance(me, Partial):
        retained = getattr(me.local, "_autoddp_grad", None)
        return NotImplemented if retained is None or len(args) > 1 else retained
    if not isinstance(me, ShardedTensor):
        return NotImplemented
    if len(args) > 1:
        local = None if args[1] is None else _local_value(me, args[1])
        if me.local.is_leaf:
            me.local.grad = local
        else:
            me.local._autoddp_grad = local  # type: ignore[attr-defined]
        return None
    local = me.local.grad if me.local.is_leaf else getattr(me.local, "_autoddp_grad", None)
    if local is None and not me.local.is_leaf:
        _ = me.local.grad  # torch warns
    return None if local is None else ShardedTensor(local, me.sizes, me.shard_dim)


_kind: Any = ShardedTensor  # mypy rejects assigning these
_kind.real, _kind.imag = part_of_complex("real"), part_of_complex("imag")


@attribute_rule("data")
def data(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the batch without its graph, or replace its memory."""
    me = args[0]
    if type(me) is Partial and len(args) > 1:
        me.full().data, me._written = full(args[1]), -1  # no other version
        return None
    if not is_sharded(me):
        return NotImplemented
    if len(args) > 1:
        _replace_memory(me, args[1])
        return None
    made = ShardedTensor(me.local.data, me.sizes, me.shard_dim)
    made.base = Base(made._local, made.spec, (me.based, me.path), own_version=True)
    return made


def _replace_memory(me: ShardedTensor, value: Any) -> None:
    """Replace the memory of a batch by that of `value`; former views keep the old memory."""
    local, new = me.local, _local_value(me, value)
    if me.base is not None and not me.path:
        me.base.rows = local.view_as(local)  # the old memory
    local.data = new
    me.base, me.path, me._whole = Base(local, me.spec), (), None
    if is_sharded(value) and value.placement == me.placement:
        me.base.source, me.base.own_version = (value.based, value.path), True
    elif not isinstance(value, (ShardedTensor, Partial)):
        me.base.keep(value.detach())
        me.base.exported = True


def _local_value(me: ShardedTensor, value: Any) -> Tensor:
    """Return this rank's rows of a tensor that replaces the batch."""
    if value.shape != me.shape:
        raise BadInput(
            f"a tensor of shape {tuple(value.shape)} cannot replace a batch of {tuple(me.shape)} "
            "in place, as each rank holds its rows; give it another name, or run with --view local"
        )
    if is_sharded(value) and value.placement == me.placement:
        return value.local
    return shard(full(value).detach(), me.sizes, me.shard_dim)


@uncached_rule("register_hook")
def register_hook(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Register a hook that receives the gradient sharded and at true scale."""
    me, hook = args if len(args) == 2 else (args[0], kwargs["hook"])
    if not is_sharded(me):
        return _register_on_sum(me, hook) if _has_graph(me) else NotImplemented
    sizes, at, leaf = me.sizes, me.shard_dim, me.local.is_leaf
    size = sizes.view.group.size

    def on_rows(g: Tensor) -> Tensor | None:
        out = hook(_wrapped_gradient(g, sizes, at, 1 if leaf else size))
        if out is None:
            return None
        local = out.local if is_sharded(out) and out.sizes is sizes else sizes.shard(out, at)
        return local if leaf else local * size

    return _register(me.local, on_rows, size)


def _register_on_sum(me: Partial, hook: Any) -> Any:
    """Register a hook on an unread sum: on its local term, which has the gradient of the sum."""
    size = me.owner.group.size

    def on_term(g: Tensor) -> Tensor | None:
        out = hook(g / size)
        return None if out is None else full(out) * size

    return _register(me.local, on_term, size)


def _has_graph(me: Any) -> bool:
    """Return whether gradients reach the local tensor of `me`."""
    return is_sharded(me) or (isinstance(me, Partial) and unread(me) and me.local.requires_grad)


def _wrapped_gradient(g: Tensor, sizes: Any, at: int, scale: int) -> ShardedTensor:
    """Return a sharded gradient; all hooks of a tensor receive one object, as in one process."""
    wrapped: ShardedTensor | None = getattr(g, "_autoddp_shown", None)
    if wrapped is None or wrapped.sizes is not sizes or wrapped.shard_dim != at:
        wrapped = ShardedTensor(g if scale == 1 else g / scale, sizes, at)
        if scale != 1:  # avoids a reference cycle
            g._autoddp_shown = wrapped  # type: ignore[attr-defined]
    return wrapped


CASTS = ("to", "cuda", "cpu", "float", "double", "half", "bfloat16", "long", "int", "bool")


@rule(*CASTS, "type", "type_as", "contiguous", "clone", "detach", "pin_memory")
def cast_or_copy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Cast, move or copy the batch; the placement stays."""
    me, name = args[0], func.__name__
    if isinstance(me, Partial):
        return copy_or_cast(func, args, kwargs)
    if not is_sharded(me):
        return NotImplemented
    if name == "contiguous":
        return view_or_copy(LocalCall(args, kwargs, me.placement, MAYBE), func, args, kwargs)
    if name == "clone":
        keeps = "memory_format" not in kwargs
        return LocalCall(args, kwargs, me.placement, keeps_layout=keeps)
    return LocalCall(args, kwargs, me.placement, DETACHED if name == "detach" else MAYBE)


@uncached_rule("detach_")
def detach_(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Detach the rows and the whole; torch raises its error for a view."""
    me = args[0]
    if isinstance(me, Partial):
        return copy_or_cast(func, args, kwargs)
    me.local.detach_()
    me.based.drop_graph()
    return me
