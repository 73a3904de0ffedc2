"""Attributes and metadata, which the script sees of the whole batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autoddp.errors import BadInput
from autoddp.torch_internals import plain_tensors
from autoddp.view.aliases import AliasGroup
from autoddp.view.local_call import LocalCall
from autoddp.view.redistribute import Renamed, node_name, shard, with_node_name
from autoddp.view.rules.operands import alias_of
from autoddp.view.rules.partial import copy_or_cast, unread
from autoddp.view.sharded_tensor import Partial, ShardedTensor, full, is_sharded
from autoddp.view.table import attribute_rule, rule, uncached_rule


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
    """Let the wrapper answer for metadata, as it has the shape of the whole."""
    if func is Tensor.__len__ and isinstance(args[0], Partial):
        return NotImplemented  # len() of a 0-dim tensor raises
    with plain_tensors():
        return func(*args, **kwargs)


@uncached_rule("is_pinned", "is_shared")
def about_memory(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return whether the batch's memory is pinned, or shared.

    As this rank's rows lie, so lie all, unless the script has had the whole, and done something to
    it.
    """
    me, *rest = args
    return (
        any(func(x, *rest, **kwargs) for x in _memory_holders(me))
        if is_sharded(me)
        else NotImplemented
    )


@uncached_rule("record_stream")
def record_stream(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Record a stream on which whatever memory there is of the batch may be read."""
    me, *rest = args
    if not is_sharded(me):
        return NotImplemented
    for x in _memory_holders(me):
        func(x, *rest, **kwargs)
    return None


def _memory_holders(me: Any) -> list[Tensor]:
    """Return this rank's rows, and the whole where it was gathered or exported."""
    wholes = [me._whole, *(each.whole for each in me.aliases.exported.values())]
    return [me.local, *(x for x in wholes if x is not None)]


@attribute_rule("grad_fn", "is_leaf")
def graph(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return `grad_fn` or `is_leaf` of this rank's part, below a node of one process's kind."""
    me = args[0]
    if isinstance(me, Partial) and not me.unread:
        return func(me.full(), *args[1:])
    if (
        isinstance(me, Partial)
        and func.__self__.__name__ == "grad_fn"
        and me.node != node_name(me.local)
    ):
        return func(with_node_name(Renamed, me.node).apply(me.local))
    return func(me.local, *args[1:])


@uncached_rule("__repr__")
def represent(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Print the batch as a leaf if this rank's rows are one."""
    me = args[0]
    if not is_sharded(me) or not me.local.requires_grad or not me.local.is_leaf:
        return NotImplemented
    return func(me.full().detach().requires_grad_(), **kwargs)


@attribute_rule("requires_grad")
def requires_grad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Read `requires_grad` from this rank's part; set it on rows only."""
    me = args[0]
    if len(args) > 1 and isinstance(args[1], bool):
        if not isinstance(me, ShardedTensor):
            return NotImplemented
        if not me.local.is_leaf:
            me.local.requires_grad = args[1]  # which torch refuses, in its own words
        _require(me, args[1])
        return None
    return me.local.requires_grad


@uncached_rule("requires_grad_")
def requires_grad_(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Set whether the script wants the gradient of an input, a leaf of this rank alone."""
    me, *rest = args
    if not is_sharded(me):
        return NotImplemented
    _require(me, kwargs.get("requires_grad", rest[0] if rest else True))
    return me


def _require(me: ShardedTensor, yes: bool) -> None:
    local = me.local
    fresh = yes and not local.requires_grad
    local.requires_grad_(yes)
    if fresh and not hasattr(local, "_autoddp_rows"):  # a hook outlives requires_grad_(False)
        view = me.sizes.view
        local._autoddp_rows = True  # type: ignore[attr-defined]  # not a leaf to average over ranks
        # .grad is what the script reads: at true scale
        local.register_hook(lambda g: g / view.group.size)


@uncached_rule("retain_grad")
def retain_grad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Retain the gradient of this rank's part; reading .grad gives the true one."""
    me = args[0]
    if not _has_graph(me) or me.local.is_leaf:
        return None if is_sharded(me) else NotImplemented
    if getattr(me.local, "_autoddp_retains", None) is None:  # as in torch, a second call is none
        _retain(me.local, me.owner.group.size)
    return None


def _retain(holder: Any, size: int) -> None:
    """Keep a gradient, at the true scale, by the last hook, as torch does, whoever adds others."""
    before = getattr(holder, "_autoddp_retains", None)
    if before is not None:
        before.remove()

    def keep(g: Tensor) -> None:
        before = getattr(holder, "_autoddp_grad", None)
        mine = g.detach() / size
        holder._autoddp_grad = mine if before is None else before + mine

    holder._autoddp_retains = holder.register_hook(keep)


def _hooked(holder: Any, hook: Any, size: int) -> Any:
    handle = holder.register_hook(hook)
    if getattr(holder, "_autoddp_retains", None) is not None:
        _retain(holder, size)
    return handle


@attribute_rule("grad")
def grad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Read or set the gradient of the batch, by rows, at the true scale."""
    me = args[0]
    if isinstance(me, Partial):
        kept = getattr(me.local, "_autoddp_grad", None)
        return NotImplemented if kept is None or len(args) > 1 else kept
    if not isinstance(me, ShardedTensor):
        return NotImplemented
    if len(args) > 1:
        mine = None if args[1] is None else _local_value(me, args[1])
        if me.local.is_leaf:
            me.local.grad = mine
        else:
            me.local._autoddp_grad = mine  # type: ignore[attr-defined]
        return None
    found = me.local.grad if me.local.is_leaf else getattr(me.local, "_autoddp_grad", None)
    if found is None and not me.local.is_leaf:
        _ = me.local.grad  # torch warns of that
    return None if found is None else ShardedTensor(found, me.sizes, me.shard_dim)


@attribute_rule("data")
def data(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the same rows, without their graph, or put others in their place."""
    me = args[0]
    if not is_sharded(me):
        return NotImplemented
    if len(args) > 1:
        _take_memory(me, args[1])
        return None
    me.aliases.separate_versions = True
    return alias_of(me, me.local.data)


def _take_memory(me: ShardedTensor, value: Any) -> None:
    """Give a batch the memory of another tensor; views of what it had before go their own way."""
    me.local.data = _local_value(me, value)
    me._whole = None  # was gathered of the memory before
    if is_sharded(value) and value.placement == me.placement:
        me.aliases_if_any = value.aliases
        return
    me.aliases_if_any = AliasGroup()
    if not isinstance(value, (ShardedTensor, Partial)):
        me.aliases.export(value.detach(), me.local, me.sizes, me.shard_dim, raw=False)


def _local_value(me: ShardedTensor, value: Any) -> Tensor:
    """Return this rank's rows of a tensor that is put in the place of another."""
    if value.shape != me.shape:
        raise BadInput(
            f"a tensor of shape {tuple(value.shape)} in the place of a batch of {tuple(me.shape)}, "
            "of which each rank holds its rows; give it a name of its own, or run with --view local"
        )
    if is_sharded(value) and value.placement == me.placement:
        return value.local
    return shard(full(value).detach(), me.sizes, me.shard_dim)


@uncached_rule("register_hook")
def register_hook(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Register a hook, which sees the gradient of the batch by rows, at the true scale."""
    me, hook = args
    if not is_sharded(me):
        return _hook_sum(me, hook) if _has_graph(me) else NotImplemented
    sizes, at, leaf = me.sizes, me.shard_dim, me.local.is_leaf
    size = sizes.view.group.size

    def by_rows(g: Tensor) -> Tensor | None:
        out = hook(_wrapped_gradient(g, sizes, at, 1 if leaf else size))
        if out is None:
            return None
        mine = out.local if is_sharded(out) and out.sizes is sizes else sizes.shard(out, at)
        return mine if leaf else mine * size

    return _hooked(me.local, by_rows, size)


def _hook_sum(me: Partial, hook: Any) -> Any:
    """Register a hook on a sum that no rank has read: on its part, whose gradient is the sum's."""
    size = me.owner.group.size

    def on_part(g: Tensor) -> Tensor | None:
        out = hook(g / size)
        return None if out is None else full(out) * size

    return _hooked(me.local, on_part, size)


def _has_graph(me: Any) -> bool:
    """Return whether a gradient comes by what this rank holds of a tensor."""
    return is_sharded(me) or (isinstance(me, Partial) and unread(me) and me.local.requires_grad)


def _wrapped_gradient(g: Tensor, sizes: Any, at: int, scale: int) -> ShardedTensor:
    """Return a gradient by rows, one object for all hooks of a tensor: they may mark it."""
    wrapped: ShardedTensor | None = getattr(g, "_autoddp_shown", None)
    if wrapped is None or wrapped.sizes is not sizes or wrapped.shard_dim != at:
        wrapped = ShardedTensor(g if scale == 1 else g / scale, sizes, at)
        if scale != 1:  # else both would hold each other
            g._autoddp_shown = wrapped  # type: ignore[attr-defined]
    return wrapped


CASTS = ("to", "cuda", "cpu", "float", "double", "half", "bfloat16", "long", "int", "bool")


@rule(*CASTS, "type", "type_as", "contiguous", "clone", "detach", "detach_", "pin_memory")
def cast_or_copy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Cast, move or copy the batch, which keeps the same rows."""
    me, *rest = args
    if isinstance(me, Partial):
        return copy_or_cast(func, args, kwargs)
    if not is_sharded(me):
        return NotImplemented
    if func.__name__ == "contiguous" and me.sizes.smallest < 2 and not me.is_contiguous(**kwargs):
        # a rank of one row may have it contiguous already, where one process copies
        return ShardedTensor(me.local.clone().contiguous(*rest, **kwargs), me.sizes, me.shard_dim)
    return LocalCall(args, kwargs, me.placement, aliases=True)
