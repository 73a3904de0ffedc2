"""Random functions of the script: drawn for the whole batch, of which a rank keeps its rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autoddp.view.draws import FILL, LIKE, DrawingCall
from autoddp.view.local_call import LocalCall
from autoddp.view.rules.arguments import arguments
from autoddp.view.sharded_tensor import is_sharded
from autoddp.view.table import rule

# name -> how many dimensions an input has whose first one is the batch (None: any)
CHANNELS = {"dropout1d": 3, "dropout2d": None, "dropout3d": 5}
CHANNELS |= {"feature_alpha_dropout": None, "feature_dropout": None}


@rule("dropout", "alpha_dropout", *CHANNELS)
def dropout(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Draw the mask of the whole batch; without training the input itself is returned."""
    given = arguments(func, args, kwargs)
    me, name = given.get("input"), func.__name__
    if not is_sharded(me):
        return NotImplemented
    writes = bool(given.get("inplace"))
    if not given.get("training", given.get("train")) or not given["p"]:
        return LocalCall(args, kwargs, me.placement, aliases=True, in_place=writes)
    if name in CHANNELS and (me.dim() < 2 or me.shard_dim > 1):
        return NotImplemented  # the mask has no rows
    if CHANNELS.get(name) not in (None, me.dim()):
        return NotImplemented  # without a batch a dimension is put in front
    return DrawingCall(args, kwargs, me.placement, in_place=writes, drawn=me.placement)


@rule(*LIKE, *FILL)
def noise(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Draw noise as one process does, so that every generator is as there afterwards."""
    me, *rest = args
    if not is_sharded(me) or any(isinstance(x, Tensor) for x in (*rest, *kwargs.values())):
        return NotImplemented
    if kwargs.get("generator") is not None:
        return NotImplemented
    writes = func.__name__ in FILL
    return DrawingCall(args, kwargs, me.placement, in_place=writes, drawn=me.placement)
