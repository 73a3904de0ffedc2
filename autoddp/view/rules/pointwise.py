"""Pointwise functions, by torch's tag."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from autoddp.view.containers import leaves_in
from autoddp.view.local_call import LocalCall
from autoddp.view.rules.operands import MISALIGNED, aligned
from autoddp.view.rules.partial import linear
from autoddp.view.sharded_tensor import Partial, is_sharded
from autoddp.view.table import in_place, pointwise_rule, rule

SUMS = {"mvlgamma", "mvlgamma_", "multigammaln"}  # sums of terms, with a layout of their own


@pointwise_rule
def pointwise(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on shards of equal sizes, and on this rank's rows of replicated operands."""
    leaves = leaves_in(args, kwargs)
    sharded = [x for x in leaves if is_sharded(x)]
    if not sharded:
        holds_sums = any(type(x) is Partial for x in leaves)
        return linear(func, args, kwargs) if holds_sums else NotImplemented
    writes = in_place(func)
    if kwargs.get("out") is not None or (writes and not is_sharded(args[0])):
        return NotImplemented
    lead = max(sharded, key=lambda x: x.dim() - x.shard_dim)
    ndim = max(x.dim() for x in leaves if isinstance(x, Tensor))
    dim = ndim - (lead.dim() - lead.shard_dim)
    if dim < 0 or (writes and args[0].dim() != ndim):
        return NotImplemented
    local = tree_map(lambda x: aligned(x, lead.sizes, dim, ndim), (args, kwargs))
    if any(x is MISALIGNED for x in tree_leaves(local)):
        return NotImplemented
    local_args, local_kwargs = local
    keeps = func.__name__ not in SUMS
    place = (dim, lead.sizes)
    return LocalCall(local_args, local_kwargs, place, in_place=writes, keeps_layout=keeps)


@rule("where")
def where(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `where` pointwise if it has three arguments; with one it returns indices."""
    return pointwise(func, args, kwargs) if len(args) + len(kwargs) == 3 else NotImplemented
