"""Losses, as sums over local rows: large logits are never gathered.

The denominator of a mean is known without communication if it counts rows or elements. With ignored
or weighted targets it is reduced together with the sum.
"""

from __future__ import annotations

import inspect
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # the field's name for it

from autoddp.view.redistribute import SumOverRanks, node_name, shard, with_node_name
from autoddp.view.rules.operands import MISALIGNED, arguments, local_operand, replicated_operand
from autoddp.view.sharded_tensor import Partial, ShardedTensor, full, is_sharded
from autoddp.view.table import uncached_rule

IGNORED = -100  # torch's default ignore_index
SAME = ("view", "reshape", "flatten", "squeeze", "unsqueeze")  # views of all elements
LOW = (torch.float16, torch.bfloat16)


def _sum(func: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, torch.dtype]:
    """Sum a loss over local rows; return the sum and the dtype that torch gives it.

    Half precision is summed in float32, to avoid overflow; under autocast a loss is float32.
    """
    if args[0].dtype in LOW:
        out: Tensor = func(*args, reduction="none", **kwargs)
        return out.sum(dtype=torch.float32 if out.dtype in LOW else None), out.dtype
    total: Tensor = func(*args, reduction="sum", **kwargs)
    return total, total.dtype


# losses with a term for each element, and with one for each row
ELEMENTS = (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "soft_margin_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
)
ROWS = (
    *("margin_ranking_loss", "hinge_embedding_loss", "cosine_embedding_loss"),
    *("triplet_margin_loss", "poisson_nll_loss", "gaussian_nll_loss"),
)
# these are composed of a loss and a reduction, whose node is the last in the graph
COMPOSED = ("l1_loss", "kl_div", *ROWS)
NODES = {"mean": "MeanBackward0", "sum": "SumBackward0", "batchmean": "DivBackward0"}


@uncached_rule(*ELEMENTS, *ROWS)
def loss_of_terms(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute a loss whose number of terms follows from shapes: elements or rows."""
    given, name = arguments(func, args, kwargs), func.__name__
    me, reduction = next(iter(given.values()), None), given.pop("reduction", None)
    legacy = given.pop("size_average", None) is not None or given.pop("reduce", None) is not None
    if not inspect.isfunction(func) or not is_sharded(me) or legacy:
        return NotImplemented
    if reduction not in ("mean", "sum", "none") and (name, reduction) != ("kl_div", "batchmean"):
        return NotImplemented
    if name == "mse_loss" and reduction == "mean" and given.get("weight") is not None:
        return NotImplemented  # it divides by the sum of the weights
    local = _rows(name, given, me) if name in ROWS else _elements(given, me)
    if local is None:
        return NotImplemented
    if (name, reduction) == ("kl_div", "mean"):
        nothing = torch.zeros(1, device="cpu")
        func(nothing, nothing)  # warns of "mean"
    terms = func(**local, reduction="none")
    if reduction == "none":
        return ShardedTensor(terms, me.sizes, me.shard_dim)
    total = terms.sum(dtype=torch.float32 if terms.dtype in LOW else None)
    every = me.sizes.spec(tuple(terms.shape), me.shard_dim).shape.numel()
    count = {"sum": 1, "mean": every, "batchmean": me.shape[0]}[reduction]
    node = NODES[reduction] if name in COMPOSED else node_name(terms)
    return mean_of(total, count, me.sizes.view, terms.dtype, node)


def _elements(given: dict[str, Any], me: ShardedTensor) -> dict[str, Any] | None:
    """Return the local arguments of a loss by elements, of input and target of one shape."""
    if not isinstance(given["target"], Tensor) or given["target"].shape != me.shape:
        return None  # whole shapes decide: with one row local ones may differ between ranks
    local = {k: local_operand(v, me.sizes, me.shard_dim, me.dim()) for k, v in given.items()}
    return None if any(x is MISALIGNED for x in local.values()) else local


def _rows(name: str, given: dict[str, Any], me: ShardedTensor) -> dict[str, Any] | None:
    """Return the local arguments of a loss by rows, sharded along dimension 0; else None."""
    vectors = name.startswith(("cosine", "triplet"))  # a single vector is no batch
    if me.shard_dim != 0 or not me.sizes.smallest or not me.numel() or me.dim() < 1 + vectors:
        return None
    shapes = (me.shape, me.shape[:1] if name.startswith("cosine") else me.shape)
    local = dict(given)
    for key, x in given.items():
        if isinstance(x, Tensor):
            if x.shape not in shapes or (is_sharded(x) and x.placement != me.placement):
                return None
            local[key] = x.local if is_sharded(x) else shard(full(x), me.sizes, 0)
    return local


def mean_of(total: Tensor, count: int, view: Any, dtype: torch.dtype, node: str) -> Partial:
    """Return the mean of `count` terms whose local sum is `total`; it is divided once."""
    if count == 1:
        return Partial(total, view, dtype, node=node)
    known = view.pending.add(total, count) if count else None
    return Partial(total / count, view, dtype, known, node)


@uncached_rule("cross_entropy", "nll_loss")
def class_loss(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute a loss with a term for each target that is not `ignore_index`."""
    given = arguments(func, args, kwargs)
    if not given or func not in (F.cross_entropy, F.nll_loss):
        return NotImplemented
    me, target, reduction = given.pop("input"), given.pop("target"), given.pop("reduction")
    legacy = given.pop("size_average", None) is not None or given.pop("reduce", None) is not None
    if (
        not is_sharded(me)
        or me.shard_dim == 1
        or len(me.shape) < 2
        or legacy
        or reduction not in ("mean", "sum", "none")
    ):
        return NotImplemented
    if given.get("label_smoothing") and given.get("weight") is not None and reduction == "mean":
        return NotImplemented
    dim = me.shard_dim  # targets lack the dimension of classes, unless they are probabilities
    dim -= dim > 0 and target.dim() < me.dim()
    local = target.local if is_sharded(target) else full(target)
    if is_sharded(target) and target.placement != (dim, me.sizes):
        return NotImplemented
    if not is_sharded(target):
        if local.dim() <= dim or local.shape[dim] != me.sizes.total:
            return NotImplemented
        local = shard(local, me.sizes, dim)
    given = {k: replicated_operand(v, me.sizes) for k, v in given.items()}
    if MISALIGNED in [v for v in given.values() if not isinstance(v, Tensor)]:
        return NotImplemented
    if reduction == "none":  # has no dimension of classes
        out = func(me.local, local, reduction="none", **given)
        return ShardedTensor(out, me.sizes, me.shard_dim - (me.shard_dim > 0))
    total, dtype = _sum(func, me.local, local, **given)
    if reduction == "sum":
        return Partial(total, me.sizes.view, dtype)
    return _mean(me, total, target, local, given, dtype)


def _mean(
    me: ShardedTensor,
    total: Tensor,
    target: Any,
    local: Tensor,
    given: dict[str, Any],
    dtype: torch.dtype,
) -> Any:
    """Divide the sum by its denominator, known or reduced with the sum."""
    view, node = me.sizes.view, node_name(total)
    terms = prod(me.shape) // max(me.shape[1], 1)
    if local.is_floating_point():  # class probabilities are never ignored
        named_so = node if node == "AddBackward0" else "DivBackward1"
        return mean_of(total, terms, view, dtype, named_so)
    weight, ignore = given.get("weight"), given.get("ignore_index", IGNORED)
    if weight is None and not is_sharded(target):
        return Partial(total / (full(target) != ignore).sum(), view, dtype, node=node)
    known = _counted(target, ignore) if weight is None else None
    if known is not None:
        return mean_of(total, known, view, dtype, node)
    real = local != ignore
    if weight is None:
        view.ignored = ignore
    else:
        real = weight[local.where(real, 0)].mul(real)
    both = torch.stack([total.detach(), real.sum(dtype=total.dtype)])
    every, count = view.group.all_reduce(both).unbind()
    mean, local = ((x / count).to(dtype) for x in (every, total))
    return with_node_name(SumOverRanks, node).apply(local, view.group, mean)


def _counted(target: ShardedTensor, ignore: int) -> int | None:
    """Return how many targets of the whole batch are not ignored, if that is known, see `Base`."""
    base = target.base
    if base is None or base.counted is None or base.exported or base.source is not None:
        return None
    version, value, count = base.counted
    kept = all(step[0].__name__ in SAME for step in target.path)
    return count if kept and value == ignore and version == base.rows._version else None
