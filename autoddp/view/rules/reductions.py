"""Reductions, softmaxes and sorts along dimensions but the batch's, and sums over the batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from autoddp.view.boundaries import SumOverRanks, named
from autoddp.view.rows import Partial, Rows, split
from autoddp.view.table import rule

# name -> where `dim` stands among the arguments; these remove the dimension unless keepdim
REMOVE = dict.fromkeys(
    [
        "sum",
        "mean",
        "argmax",
        "argmin",
        "max",
        "min",
        "logsumexp",
        "amax",
        "amin",
        "any",
        "all",
        "prod",
        "var",
        "std",
        "median",
        "mode",
        "nansum",
        "nanmean",
    ],
    1,
) | {"norm": 2, "kthvalue": 2}
KEEP = {
    "softmax": 1,
    "log_softmax": 1,
    "cumsum": 1,
    "cumprod": 1,
    "sort": 1,
    "argsort": 1,
    "topk": 2,
    "glu": 1,
}
DEFAULTS = {"sort": -1, "argsort": -1, "topk": -1, "kthvalue": -1, "glu": -1}
LOW = (torch.float16, torch.bfloat16)  # summed in float32, as torch does inside


def _dims(value: Any, ndim: int) -> list[int] | None:
    """Return `dim` as a list of dimensions from 0, or None if it is not that."""
    listed = [value] if isinstance(value, int) else value
    if not isinstance(listed, (tuple, list)) or not listed or not ndim:
        return None
    if not all(type(d) is int and -ndim <= d < ndim for d in listed):
        return None
    return [d % ndim for d in listed]


@rule(*REMOVE)
def remove(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Reduce over dimensions, `x.argmax(1)`, `x.sum((1, 2))`, or over all of the batch at once."""
    me, *rest = args
    name, where = (
        func.__name__.removeprefix("linalg_"),
        REMOVE.get(func.__name__.removeprefix("linalg_"), 1),
    )
    if not split(me) or "out" in kwargs or any(isinstance(x, (Rows, Partial)) for x in rest):
        return NotImplemented
    value = kwargs.get("dim", args[where] if len(args) > where else DEFAULTS.get(name))
    if value is None:
        return NotImplemented if rest or kwargs else over_everything(name, me)
    dims = _dims(value, me.dim())
    if dims is None:
        return NotImplemented
    keepdim = kwargs.get("keepdim", len(args) > where + 1 and args[where + 1])
    if (name in ("var", "std") and len(args) > 2) or not isinstance(keepdim, bool):
        return NotImplemented  # the old form, with `unbiased` by position
    if me.at in dims:
        return over_batch(func, name, me, dims, keepdim, kwargs)
    at = me.at if keepdim else me.at - sum(d < me.at for d in dims)
    out = func(me.local, *rest, **kwargs)
    return tree_map(lambda o: Rows(o, me.cuts, at) if isinstance(o, Tensor) else o, out)


def over_everything(name: str, me: Rows) -> Any:
    """Reduce to a number: a sum stays a part until somebody reads it; extremes are read at once."""
    local = me.local
    view = me.cuts.view
    if name in ("sum", "mean"):
        if name == "mean" and not (local.is_floating_point() or local.is_complex()):
            return NotImplemented
        low = local.dtype in LOW
        if low and torch.is_autocast_enabled(local.device.type):
            return NotImplemented  # autocast decides the dtype
        total = local.sum(dtype=torch.float32) if low else local.sum()
        dtype = local.dtype if low else total.dtype
        if name == "sum":
            return Partial(total, view, dtype)
        return Partial(total / me.numel(), view, dtype, node="MeanBackward0")
    needs = local.requires_grad and torch.is_grad_enabled()
    if (
        needs
        or name not in ("max", "min", "any", "all")
        or local.is_complex()
        or not me.cuts.smallest
    ):
        return NotImplemented
    if not me.numel():
        return NotImplemented
    mine = getattr(local, name)()
    return getattr(view.group.all_gather(mine), name)()


def over_batch(
    func: Any, name: str, me: Rows, dims: list[int], keepdim: bool, kwargs: dict[str, Any]
) -> Any:
    """Compute `x.sum(0)`, `x.mean((0, 2, 3))` by one all-reduce, at most as large as a row."""
    local = me.local
    if name not in ("sum", "mean") or set(kwargs) - {"dim", "keepdim"} or local.dtype in LOW:
        return NotImplemented
    if name == "mean" and not (local.is_floating_point() or local.is_complex()):
        return NotImplemented
    total, node = local.sum(dims, keepdim=keepdim), "SumBackward1"
    if name == "mean":
        total, node = total / math.prod(me.shape[dim] for dim in set(dims)), "MeanBackward1"
    return named(SumOverRanks, node).apply(total, me.cuts.view.group)


@rule(*KEEP)
def keep(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `softmax`, `cumsum`, `topk` along another dimension than the batch's."""
    me, *rest = args
    name = func.__name__
    if not split(me) or "out" in kwargs or any(isinstance(x, (Rows, Partial)) for x in rest):
        return NotImplemented
    where = KEEP.get(name, 1)
    value = kwargs.get("dim", args[where] if len(args) > where else DEFAULTS.get(name))
    dims = _dims(value, me.dim())
    if dims is None or me.at in dims:
        return NotImplemented
    out = func(me.local, *rest, **kwargs)
    return tree_map(lambda o: Rows(o, me.cuts, me.at) if isinstance(o, Tensor) else o, out)


@rule("gather", "take_along_dim")
def pick(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `logits.gather(1, labels[:, None])`.

    It goes along another dimension than the batch's, by indices of the same rows.
    """
    if kwargs or len(args) != 3:
        return NotImplemented
    me, dim, index = args if func.__name__ == "gather" else (args[0], args[2], args[1])
    if not split(me) or not split(index) or index.cuts is not me.cuts or index.at != me.at:
        return NotImplemented
    dims = _dims(dim, me.dim())
    if dims is None or me.at in dims or index.dim() != me.dim():
        return NotImplemented
    mine = (
        (me.local, dim, index.local) if func.__name__ == "gather" else (me.local, index.local, dim)
    )
    return Rows(func(*mine), me.cuts, me.at)
