"""New tensors like a sharded one: of its shape, sharded, or of a given shape, replicated."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autoddp.view.local_call import LocalCall
from autoddp.view.rules.operands import any_sharded
from autoddp.view.sharded_tensor import Partial, is_sharded
from autoddp.view.table import rule


@rule("ones_like", "zeros_like", "full_like", "empty_like")
def like(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Make a new tensor of the batch's shape, sharded as the batch is."""
    me, *rest = args
    if not is_sharded(me) or any_sharded(rest) or kwargs.get("requires_grad"):
        return NotImplemented
    if any(type(x) is Partial for x in (*rest, *kwargs.values())):
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


@rule("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")
def new(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Make a replicated tensor, of nothing but a size, a dtype and a device."""
    me, *rest = args
    if not is_sharded(me) or any(isinstance(x, Tensor) for x in (*rest, *kwargs.values())):
        return NotImplemented
    return LocalCall(args, kwargs, None)
