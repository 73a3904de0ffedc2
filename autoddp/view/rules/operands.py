"""How the arguments of a call take part in a local call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoddp.view.local_call import LocalRows
from autoddp.view.redistribute import lend, part
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.sharded_tensor import ShardedTensor, full, is_sharded

UNCLEAR = object()


def aligned(x: Any, sizes: ShardSizes, dim: int, ndim: int) -> Any:
    """Return how `x` takes part in a pointwise call whose result has `ndim` dimensions.

    Broadcasting aligns the last dimensions. A sharded tensor must lie along `dim` of the result; of
    a replicated one a rank takes its rows, or all of it where it broadcasts. UNCLEAR otherwise.
    """
    behind = ndim - dim
    if is_sharded(x):
        return x if x.sizes is sizes and x.dim() - x.shard_dim == behind else UNCLEAR
    if not isinstance(x, Tensor):
        return UNCLEAR if getattr(x, "ndim", 0) else x  # an array of numpy's has all rows
    if x.layout is not torch.strided:
        return UNCLEAR
    place = x.dim() - behind
    if place < 0 or x.shape[place] == 1 != sizes.total:
        return x
    return LocalRows(place) if x.shape[place] == sizes.total else UNCLEAR


def local_operand(x: Any, sizes: ShardSizes, dim: int, ndim: int) -> Any:
    """Return what this rank has of an operand that `aligned` lines up; UNCLEAR likewise."""
    x = full(x) if not is_sharded(x) else x
    found = aligned(x, sizes, dim, ndim)
    if is_sharded(found):
        return found.local
    if type(found) is LocalRows:
        return part(x, sizes, found.dim)
    return lend(found, sizes.view.group) if isinstance(found, Tensor) else found


def whole_operand(x: Any, sizes: ShardSizes) -> Any:
    """Return a weight or setting, which every row meets in full; UNCLEAR for a batch."""
    if is_sharded(x):
        return UNCLEAR
    x = full(x)
    return lend(x, sizes.view.group) if isinstance(x, Tensor) else x


def any_sharded(values: Any) -> bool:
    """Return whether one of these arguments is sharded."""
    return any(type(x) is ShardedTensor for x in values)


def related(
    me: ShardedTensor, out: Tensor, dim: int | None = None, sizes: ShardSizes | None = None
) -> ShardedTensor:
    """Return a sharded tensor that may share memory with `me`; `me` itself if nothing changed."""
    if out is me._local:
        return me
    return ShardedTensor(out, sizes or me.sizes, me.shard_dim if dim is None else dim, me.aliases)
