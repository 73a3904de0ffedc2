"""Creation of tensors like a sharded one, constant or random, and of its copies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoddp.view.draws import FILL, LIKE, DrawingCall
from autoddp.view.local_call import MAYBE, Const, LocalCall
from autoddp.view.redistribute import rows_of
from autoddp.view.rules.operands import any_sharded, arguments
from autoddp.view.sharded_tensor import Partial, ShardedTensor, full, is_sharded
from autoddp.view.table import rule, uncached_rule


@rule("ones_like", "zeros_like", "full_like", "empty_like")
def like(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Create a tensor with the shape and placement of the batch."""
    me, *rest = args
    if not is_sharded(me) or any_sharded(rest) or kwargs.get("requires_grad"):
        return NotImplemented
    if any(type(x) is Partial for x in (*rest, *kwargs.values())):
        return NotImplemented
    return LocalCall(args, kwargs, me.placement, keeps_layout="memory_format" not in kwargs)


SIZED = {"new_empty", "new_zeros", "new_ones", "new_full"}  # their first argument is a size


@rule("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")
def new(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Create a replicated tensor of the dtype and device of the batch; one of its shape is sharded.

    Only by its `shape` itself: in `x.new_ones(n, n)`, the batch may be as long as something else.
    """
    me, *rest = args
    if not is_sharded(me) or any(isinstance(x, Tensor) for x in (*rest, *kwargs.values())):
        return NotImplemented
    size = rest[0] if rest else None
    whole = type(size) is torch.Size and size == me.shape and func.__name__ in SIZED
    if not whole or kwargs.get("requires_grad"):
        return LocalCall(args, kwargs, None)
    return LocalCall((me, Const(me.spec.local_shape), *rest[1:]), kwargs, me.placement)


# name -> number of dimensions of a batched input (None: any)
CHANNELS = {"dropout1d": 3, "dropout2d": None, "dropout3d": 5}
CHANNELS |= {"feature_alpha_dropout": None, "feature_dropout": None}


@rule("dropout", "alpha_dropout", *CHANNELS)
def dropout(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Draw the mask of the whole batch; return the input outside of training."""
    bound = arguments(func, args, kwargs)
    me, name = bound.get("input"), func.__name__
    if not is_sharded(me):
        return NotImplemented
    writes = bool(bound.get("inplace"))
    if not bound.get("training", bound.get("train")) or not bound["p"]:
        return LocalCall(args, kwargs, me.placement, MAYBE, in_place=writes)
    if name in CHANNELS and (me.dim() < 2 or me.shard_dim > 1):
        return NotImplemented  # the mask is not sharded
    if CHANNELS.get(name) not in (None, me.dim()):
        return NotImplemented  # an input without a batch dimension
    if writes and me.sizes.smallest < 2:  # the layout of the mask does not follow from the rows
        return me.copy_(func(*args, **{**kwargs, "inplace": False}))
    return DrawingCall(
        args, kwargs, me.placement, in_place=writes, keeps_layout=True, drawn=me.placement
    )


@rule(*LIKE, *FILL)
def noise(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Draw noise for the whole batch, so that all generators advance as in one process."""
    me, *rest = args
    if not is_sharded(me) or any(isinstance(x, Tensor) for x in (*rest, *kwargs.values())):
        return NotImplemented
    if kwargs.get("generator") is not None:
        return NotImplemented
    writes = func.__name__ in FILL
    return DrawingCall(
        args, kwargs, me.placement, in_place=writes, keeps_layout=True, drawn=me.placement
    )


@uncached_rule("bernoulli", "multinomial")
def sample(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Draw by the probabilities of the whole batch, and return this rank's rows."""
    me = args[0] if args else None
    if not is_sharded(me) or any_sharded([*args[1:], *kwargs.values()]) or "out" in kwargs:
        return NotImplemented
    if func.__name__ == "multinomial" and (me.dim() < 2 or me.shard_dim):
        return NotImplemented  # a distribution along the batch
    me.spec.view.gathered(func.__name__, me.numel() * me.dtype.itemsize)
    drawn = func(me.full(), *args[1:], **kwargs)
    return ShardedTensor(rows_of(drawn, me.sizes, me.shard_dim), me.sizes, me.shard_dim)


@uncached_rule("__deepcopy__")
def deepcopy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copy the whole batch; what shares memory with it, shares that of its copy."""
    me, memo = args
    if not is_sharded(me):
        return NotImplemented
    me.sizes.view.gathered("__deepcopy__", me.numel() * me.dtype.itemsize)
    whole = me.full(True)
    if me.local.requires_grad and me.local.is_leaf:
        whole = whole.detach().requires_grad_()
        whole.grad = full(me.grad)
    # torch looks in the memo for the ids of tensors and of memory, which have to stay
    memo.setdefault(id(memo), []).append(whole)
    return func(whole, memo)
