"""Arguments of a call by name, and their form in a local call."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx.operator_schemas import get_signature_for_torch_op
from torch.nn import functional as F  # the field's name for it

from autoddp.view.local_call import GATHER_ONCE, LocalCall, LocalRows
from autoddp.view.redistribute import agreed_strides, shard, with_mean_gradient
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.sharded_tensor import ShardedTensor, full, is_sharded

LISTS = (tuple, list)


def arguments(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by torch's names, in torch's order; empty if no signature fits.

    A Python function has one signature, which its caller has met; an operator has one for each
    overload.
    """
    if inspect.isfunction(func):
        known = _parameters(func)
        return {**known, **dict(zip(known, args, strict=False)), **kwargs}
    for signature in _signatures(func):
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            continue
        if all(_fits(signature.parameters[k].annotation, v) for k, v in given.arguments.items()):
            given.apply_defaults()
            return dict(given.arguments)
    return {}


@cache
def _parameters(func: Any) -> dict[str, Any]:
    """Return the parameters of a Python function, and their defaults."""
    # F.max_pool2d dispatches to two functions with the same arguments
    known = getattr(F, f"{func.__name__}_with_indices", func)
    return {name: x.default for name, x in inspect.signature(known).parameters.items()}


@cache
def _signatures(func: Any) -> tuple[inspect.Signature, ...]:
    packet = getattr(torch.ops.aten, getattr(func, "__name__", ""), None)
    return () if packet is None else tuple(get_signature_for_torch_op(packet) or ())


def _fits(kind: Any, value: Any) -> bool:
    """Return whether an overload accepts a value: `x.var(1)` and `x.var(False)` differ."""
    if isinstance(value, Tensor) or kind is Tensor:
        return isinstance(value, Tensor) and "Tensor" in str(kind)
    if kind is bool:
        return type(value) is bool
    if kind is int or "List[int]" in str(kind):
        return type(value) is int or value is None or isinstance(value, LISTS)
    return True


def dim_of(value: Any, ndim: int) -> int | None:
    """Return a dimension counted from 0, None if `value` is no dimension of `ndim`."""
    return value % ndim if type(value) is int and -ndim <= value < ndim else None


def dims_of(value: Any, ndim: int) -> list[int] | None:
    """Return one or several dimensions as a list counted from 0, None if one is no dimension."""
    listed = value if isinstance(value, LISTS) else [value]
    found = [dim_of(d, ndim) for d in listed]
    return None if None in found or not found else found  # type: ignore[return-value]


MISALIGNED = object()


def aligned(x: Any, sizes: ShardSizes, dim: int, ndim: int) -> Any:
    """Return the form of `x` in a pointwise local call whose result has `ndim` dimensions.

    Broadcasting aligns the last dimensions. A sharded tensor must be sharded along `dim` of the
    result. A replicated one becomes `LocalRows`, or stays if it broadcasts. Otherwise MISALIGNED.
    """
    behind = ndim - dim
    if is_sharded(x):
        return x if x.sizes is sizes and x.dim() - x.shard_dim == behind else MISALIGNED
    if not isinstance(x, Tensor):
        return MISALIGNED if getattr(x, "ndim", 0) else x  # a numpy array has all rows
    if x.layout is not torch.strided:
        return MISALIGNED
    place = x.dim() - behind
    if place < 0 or x.shape[place] == 1 != sizes.total:
        return x
    return LocalRows(place) if x.shape[place] == sizes.total else MISALIGNED


def local_operand(x: Any, sizes: ShardSizes, dim: int, ndim: int) -> Any:
    """Return the local tensor of an operand in the form that `aligned` gives, or MISALIGNED."""
    x = full(x) if not is_sharded(x) else x
    found = aligned(x, sizes, dim, ndim)
    if is_sharded(found):
        return found.local
    if type(found) is LocalRows:
        return shard(x, sizes, found.dim)
    return with_mean_gradient(found, sizes.view.group) if isinstance(found, Tensor) else found


def replicated_operand(x: Any, sizes: ShardSizes) -> Any:
    """Return a weight or a setting, which is replicated; MISALIGNED for a sharded tensor."""
    if is_sharded(x):
        return MISALIGNED
    x = full(x)
    return with_mean_gradient(x, sizes.view.group) if isinstance(x, Tensor) else x


def any_sharded(values: Any) -> bool:
    """Return whether one of these values is sharded."""
    return any(type(x) is ShardedTensor for x in values)


def view_of(
    me: ShardedTensor, out: Tensor, step: tuple[Any, ...], dim: int, sizes: ShardSizes
) -> ShardedTensor:
    """Return the view of `me` with the local rows `out`; `me` if these are its own.

    Args:
        me: A sharded tensor.
        out: The local rows of a view.
        step: The function that makes the view of the whole, its other arguments by position and
            name, and which of its results is meant.
        dim: The shard dimension of the view.
        sizes: The number of its rows on each rank.
    """
    if out is me._local:
        return me
    func, rest, kwargs, item = step
    made = (func, rest, kwargs, item, torch.is_grad_enabled())
    return me.view_by(made, out, sizes.spec(tuple(out.shape), dim))


def view_or_copy(call: LocalCall, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the decision for a function that views or copies by the layout of its argument.

    Where all ranks have several rows, and one block, the layout of a shard tells that of the whole.
    """
    me: ShardedTensor = args[0]
    if (me.sizes.smallest > 1 and me.sizes.blocks == 1) or me.local.layout is not torch.strided:
        return call
    strides = agreed_strides(me.local, me.sizes, me.shard_dim)
    with torch.inference_mode(False):  # in which no tensor tells whether it is a view
        whole = torch.empty_strided(me.shape, strides, dtype=me.dtype, device="meta")
        made = func(whole, *args[1:], **kwargs)
    if made is whole:
        return me
    out = call.run(func, args, kwargs)
    if out is not me and made._is_view() == bool(out.path):
        return out
    if made._is_view():
        return GATHER_ONCE
    kept = kwargs.get("memory_format", torch.contiguous_format)  # a single row has any stride
    return ShardedTensor(out.local.clone(memory_format=kept), out.sizes, out.shard_dim)
