"""Functions that are exact on shards: pointwise over tensors of one layout, and full reductions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoddp.comm.group import MAX
from autoddp.torch_internals import foreach_norm, plain_tensors, unscale_gradients
from autoddp.training.parameters.graph import SumOfShards
from autoddp.training.parameters.shard import Held, held, is_shard, state_of
from autoddp.view.aliases import version
from autoddp.view.containers import leaves_in
from autoddp.view.redistribute import Renamed, with_node_name
from autoddp.view.table import in_place, is_pointwise

NOT_SHARDWISE = object()
LISTS = (list, tuple)
# not pointwise by torch's tags, and yet element by element
MORE = (
    *("clone", "contiguous", "to", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"),
    *("zeros_like", "ones_like", "empty_like", "full_like"),
)
COPIES = {
    getattr(owner, name) for owner in (Tensor, torch) for name in MORE if hasattr(owner, name)
}
SHARDWISE: dict[Any, bool] = dict.fromkeys(COPIES, True)
REDUCE_TOO = ("max", "min")  # pointwise with two tensors alone
NOT_EACH = ("_foreach_norm", "_foreach_max", "_foreach_powsum")
SHARDWISE |= {
    getattr(torch, name): not name.startswith(NOT_EACH)
    for name in dir(torch)
    if name.startswith(("_foreach_", "_fused_"))
}


def _is_shardwise(func: Any) -> bool:
    found = SHARDWISE.get(func)
    if found is None:
        bare = getattr(func, "__name__", "").strip("_")
        found = SHARDWISE[func] = is_pointwise(func) and bare not in REDUCE_TOO
    return found


class _Misplaced(Exception):
    """An argument is not placed like the others."""


def run_on_shards(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute a function element by element on shards, if its arguments are placed alike."""
    if not _is_shardwise(func) or "out" in kwargs:
        return NOT_SHARDWISE
    if func is Tensor.contiguous:
        return args[0] if args[0].is_contiguous(*args[1:], **kwargs) else NOT_SHARDWISE
    if kwargs.get("memory_format", torch.preserve_format) is not torch.preserve_format:
        return NOT_SHARDWISE
    given = [*args, *kwargs.values()]
    columns = _columns(given)
    fused = getattr(func, "__name__", "").startswith("_fused_")
    written = len(given) if fused else int(in_place(func))
    try:
        made = [_local(x, columns, n < written, fused) for n, x in enumerate(given)]
    except _Misplaced:
        return NOT_SHARDWISE
    shards = [x for x in leaves_in(args, kwargs) if is_shard(x)]
    before = [(held(x), version(held(x).local)) for x in shards]
    with plain_tensors():
        out = func(*made[: len(args)], **dict(zip(kwargs, made[len(args) :], strict=True)))
    for mine, seen in before:
        if version(mine.local) != seen or (seen < 0 and written):  # inference mode counts none
            mine.memory.writes += 1
    if isinstance(out, Tensor) and None in columns and out.shape != columns[None].local.shape:
        return NOT_SHARDWISE
    known = {id(mine.local): x for x, (mine, _) in zip(shards, before, strict=True)}
    if type(out) in LISTS:
        return type(out)(_wrapped(x, columns.get(n), known) for n, x in enumerate(out))
    return _wrapped(out, columns.get(None) or columns.get(0), known)


def _columns(given: list[Any]) -> dict[Any, Held]:
    """Return what decides the placement of each place in lists, and under None of the rest."""
    found: dict[Any, Held] = {}
    for x in given:
        if type(x) in LISTS:
            for n, item in enumerate(x):
                if is_shard(item):
                    found.setdefault(n, held(item))
        elif is_shard(x):
            found.setdefault(None, held(x))
    return found


def _local(x: Any, columns: dict[Any, Held], written: bool, fused: bool) -> Any:
    if type(x) in LISTS:
        return type(x)(_element(item, columns.get(n), written, fused) for n, item in enumerate(x))
    if isinstance(x, Tensor):
        mine = columns.get(None)
        if mine is None and x.dim():  # a tensor beside lists
            raise _Misplaced
        return _element(x, mine, written, fused)
    return x


def _element(x: Any, mine: Held | None, written: bool, fused: bool) -> Any:
    """Return the shard of a tensor that is placed like another one.

    A number, such as the count of steps that fused optimizers write, is alike on all ranks.
    """
    if not isinstance(x, Tensor) or mine is None:
        return x
    if is_shard(x):
        own = held(x)
        if own.layout is not mine.layout and own.layout != mine.layout:
            raise _Misplaced
        return own.local
    if type(x) is not Tensor or (x.requires_grad and torch.is_grad_enabled()):
        raise _Misplaced
    if not x.dim() and (fused or not written):
        return x
    if written or x.shape != mine.layout.shape or x.layout is not torch.strided:
        raise _Misplaced
    return mine.wholes.agreement.cut(x, mine.layout)


def _wrapped(out: Any, mine: Held | None, known: dict[int, Any]) -> Any:
    if not isinstance(out, Tensor) or mine is None:
        return out
    same = known.get(id(out))
    return same if same is not None else state_of(mine.like(out))


# ---- reductions over all elements


def reduce_shards(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Reduce all elements of a tensor by its shards and an all-reduce."""
    reduce = REDUCTIONS.get(func)
    if reduce is None or (reduce is not _sum and _recorded(args[0])):
        return NOT_SHARDWISE
    with torch.set_grad_enabled(torch.is_grad_enabled() and reduce is _sum):
        return reduce(*args, **kwargs)


def _recorded(x: Any) -> bool:
    items = x if type(x) in LISTS else [x]
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in items)


def _sum(x: Any, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs or not is_shard(x):
        return NOT_SHARDWISE
    total = with_node_name(SumOfShards, "SumBackward0").apply
    return total(held(x).local.sum(), held(x).wholes, held(x).layout.group)


def _mean(x: Any, *args: Any, **kwargs: Any) -> Any:
    total = _sum(x, *args, **kwargs)
    if total is NOT_SHARDWISE:
        return total
    return with_node_name(Renamed, "MeanBackward0").apply(total / x.numel())


def _any(x: Any, *args: Any) -> Any:
    if args or not is_shard(x):
        return NOT_SHARDWISE
    mine = held(x)
    found = mine.local.any().to(torch.int64)
    with mine.wholes.internal():
        return mine.layout.group.all_reduce(found, MAX).bool()


def _all(x: Any, *args: Any) -> Any:
    if args or not is_shard(x):
        return NOT_SHARDWISE
    mine = held(x)
    found = (~mine.local.all()).to(torch.int64)
    with mine.wholes.internal():
        return ~mine.layout.group.all_reduce(found, MAX).bool()


def _vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: Any = False, **more: Any) -> Any:
    if dim is not None or keepdim or more or not is_shard(x):
        return NOT_SHARDWISE
    return _norms([x], ord)


def _norm(
    x: Any,
    p: Any = "fro",
    dim: Any = None,
    keepdim: Any = False,
    out: Any = None,
    dtype: Any = None,
) -> Any:
    p = 2 if p in ("fro", None) else p
    if dim is not None or keepdim or out is not None or dtype is not None or isinstance(p, str):
        return NOT_SHARDWISE
    return _vector_norm(x, p)


def _foreach_norm(items: Any, ord: Any = 2, dtype: Any = None) -> Any:
    if dtype is not None:
        return NOT_SHARDWISE
    plain = [x for x in items if not is_shard(x)]
    norms = iter(foreach_norm(plain, ord)) if plain else iter(())
    kinds: dict[Any, list[Any]] = {}
    for x in items:
        if is_shard(x):
            kinds.setdefault((x.dtype, x.device, held(x).layout.group), []).append(x)
    found: dict[int, Tensor] = {}
    for some in kinds.values():
        made = _norms(some, ord)
        if made is NOT_SHARDWISE:
            return NOT_SHARDWISE
        found |= {id(x): n for x, n in zip(some, made.reshape(-1), strict=True)}
    out = [found[id(x)] if is_shard(x) else next(norms) for x in items]
    return tuple(x.clone() for x in out)


def _norms(items: list[Any], ord: Any) -> Any:
    """Return the norms of several tensors of one dtype, device and group, or the norm of one."""
    ord = float(ord)
    if not (0 < ord <= float("inf")) or not items[0].is_floating_point():
        return NOT_SHARDWISE
    wholes, group = held(items[0]).wholes, held(items[0]).layout.group
    largest = ord == float("inf")
    parts = []
    for x in items:
        local = held(x).local.detach()
        if largest:
            parts.append(local.abs().max() if local.numel() else local.new_zeros(()))
        else:
            norm = torch.linalg.vector_norm(local, ord)
            parts.append(norm.pow(ord))
    stacked = torch.stack(parts)
    with wholes.internal():
        total = group.all_reduce(stacked, MAX) if largest else group.all_reduce(stacked)
    total = total if largest else total.pow(1 / ord)
    return total[0] if len(items) == 1 else total


def _unscale(items: Any, found_inf: Any, inverse: Any) -> Any:
    """Unscale gradients in place, and note whether any of any rank is not finite."""
    locals_ = [held(x).local if is_shard(x) else x for x in items]
    unscale_gradients(locals_, found_inf, inverse)
    for x in items:
        if is_shard(x):
            held(x).memory.writes += 1
            wholes = held(x).wholes
    with wholes.internal():
        wholes.group.all_reduce(found_inf, MAX)
    return None


REDUCTIONS: dict[Any, Any] = {
    **dict.fromkeys((Tensor.sum, torch.sum), _sum),
    **dict.fromkeys((Tensor.mean, torch.mean), _mean),
    **dict.fromkeys((Tensor.any, torch.any), _any),
    **dict.fromkeys((Tensor.all, torch.all), _all),
    **dict.fromkeys((Tensor.norm, torch.norm), _norm),
    torch.linalg.vector_norm: _vector_norm,
    foreach_norm: _foreach_norm,
    unscale_gradients: _unscale,
}
