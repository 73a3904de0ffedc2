"""Pointwise functions, by torch's tag: each result element needs that element of the operands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from autoddp.view.rows import Partial, Rows, split
from autoddp.view.rules.operands import UNCLEAR, operand, rewrap
from autoddp.view.rules.partial import linear
from autoddp.view.table import in_place, pointwise_rule, rule


@pointwise_rule
def pointwise(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on rows with equal cuts, and this rank's part of whole operands."""
    leaves, spec = tree_flatten((args, kwargs))
    if any(isinstance(x, Partial) for x in leaves):
        out = linear(func, args, kwargs)
        if out is not NotImplemented:
            return out
    lead = max((x for x in leaves if split(x)), key=lambda r: r.dim(), default=None)
    if lead is None or "out" in kwargs or (in_place(func) and not split(args[0])):
        return NotImplemented
    ndim = max(x.dim() for x in leaves if isinstance(x, Tensor))
    at = ndim - (lead.dim() - lead.at)
    mine = [operand(x, lead.cuts, at, ndim) for x in leaves]
    if any(m is UNCLEAR for m in mine):
        return NotImplemented
    my_args, my_kwargs = tree_unflatten(mine, spec)
    out = func(*my_args, **my_kwargs)
    if in_place(func):
        return args[0]
    for x in leaves:
        if split(x) and out is x._local:
            return x
    return _related(out, leaves, lead, at)


def _related(out: Any, leaves: list[Any], lead: Rows, at: int) -> Any:
    """Wrap `out` as rows; functions with inplace=True hand on the memory of their input."""
    wrapped = rewrap(out, lead.cuts, at)
    if isinstance(wrapped, Rows) and any(leaf is True for leaf in leaves):
        wrapped.family = lead.family
    return wrapped


@rule("where")
def where(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `where` pointwise if it has three arguments; with one it lists indices."""
    return pointwise(func, args, kwargs) if len(args) + len(kwargs) == 3 else NotImplemented


@rule("ones_like", "zeros_like", "full_like", "empty_like")
def like(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Make a new tensor of the batch's shape, by rows."""
    me, *rest = args
    if not split(me) or any(isinstance(x, (Rows, Partial)) for x in rest):
        return NotImplemented
    if isinstance(kwargs.get("memory_format"), torch.memory_format) and me.cuts.smallest < 2:
        return NotImplemented  # a dimension of size 1 hides the memory layout
    out = func(me.local, *rest, **kwargs)
    return NotImplemented if out.requires_grad else Rows(out, me.cuts, me.at)


@rule("one_hot")
def one_hot(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Encode rows if the number of classes is given; else the whole batch decides on it."""
    me = args[0]
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    if not split(me) or not isinstance(classes, int) or classes < 1:
        return NotImplemented
    return Rows(func(me.local, classes), me.cuts, me.at)


@rule("normalize")
def normalize(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Normalize along another dimension than the batch's."""
    me = args[0]
    dim = kwargs.get("dim", args[2] if len(args) > 2 else 1)
    if not split(me) or not isinstance(dim, int) or dim % me.dim() == me.at or "out" in kwargs:
        return NotImplemented
    return rewrap(func(me.local, *args[1:], **kwargs), me.cuts, me.at)


@rule("cosine_similarity", "pairwise_distance")
def rowwise_distance(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compare rows of equal cuts, along a dimension behind the batch's."""
    default = 1 if func.__name__ == "cosine_similarity" else -1
    dim = kwargs.get("dim", args[2] if len(args) > 2 and default == 1 else default)
    a, b = args[0], args[1] if len(args) > 1 else None
    if not (split(a) and split(b) and a.cuts is b.cuts and a.at == b.at and a.shape == b.shape):
        return NotImplemented
    if a.dim() < 2 or not isinstance(dim, int) or dim % a.dim() <= a.at or kwargs.get("keepdim"):
        return NotImplemented
    return rewrap(func(a.local, b.local, *args[2:], **kwargs), a.cuts, a.at)
