"""Views in place: `target.unsqueeze_(1)` changes the shape that the script sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoddp.errors import BadInput
from autoddp.torch_internals import no_dispatch, plain_tensors
from autoddp.view.sharded_tensor import is_sharded
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
    with torch.no_grad(), plain_tensors(), no_dispatch():
        func(*args, **kwargs)
    me._local, me.spec = out._local, out.spec
    me._whole, me._versions = None, (0, 0)  # what was gathered has the old shape
    return me


@computed("resize_", "resize_as_", "as_strided_")
def move_in_place(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Refuse other memory under the same tensor: it has no meaning for rows."""
    me = args[0]
    if not is_sharded(me):
        return NotImplemented
    raise BadInput(refused(me.shape, func.__name__))
