"""Views in place: `target.unsqueeze_(1)` changes the shape that the script sees."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from autoddp.errors import BadInput
from autoddp.torch_internals import no_dispatch
from autoddp.view.rules.operands import PLAIN
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded
from autoddp.view.table import computed, refused

SHAPES = ("squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_")


@computed(*SHAPES)
def reshape_in_place(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the function without the underscore; then the wrapper itself takes the new shape."""
    me, name = args[0], func.__name__
    if not is_sharded(me):
        return NotImplemented
    if name == "t_" and me.dim() < 2:
        return me
    out = getattr(Tensor, name[:-1])(*args, **kwargs)
    if not is_sharded(out):
        raise BadInput(refused(me.shape, name))
    with torch.no_grad(), PLAIN(), no_dispatch():
        func(*args, **kwargs)
    return _become(me, out)


def _become(me: ShardedTensor, out: ShardedTensor) -> ShardedTensor:
    me._local, me.spec = out._local, out.spec
    me._whole, me._versions = None, (0, 0)  # what was gathered has the old shape
    return me


@computed("resize_", "resize_as_", "as_strided_")
def move_in_place(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Refuse other memory under the same tensor: it has no meaning for rows.

    Another shape of the same memory is taken, and the same shape does nothing.
    """
    me = args[0]
    if not is_sharded(me):
        return NotImplemented
    sizes = args[1:] if all(type(x) is int for x in args[1:]) else args[1]
    if func.__name__ == "resize_as_" and sizes.shape == me.shape:
        return me
    if func.__name__ == "resize_":
        if tuple(sizes) == tuple(me.shape):
            return me
        if prod(sizes) == me.numel() and _one_block(me):  # the same memory under another shape
            out = me.view(*sizes)
            if is_sharded(out):
                with torch.no_grad(), PLAIN(), no_dispatch():
                    me.as_strided_(out.shape, out.stride())
                return _become(me, out)
    raise BadInput(refused(me.shape, func.__name__))


def _one_block(me: ShardedTensor) -> bool:
    with PLAIN():
        return me.is_contiguous() and not me.requires_grad
