"""Functions of sharded parameters: by shards where that is exact, else on the whole tensors.

Functions that are pointwise over tensors of one layout (optimizers, averages, `zeros_like`) are
computed on shards, sums and norms over all elements by shards and an all-reduce. Any other function
gathers, computes on whole tensors, and writes into the shards what it has changed.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from autoddp.torch_internals import SavedTensors, plain_tensors, swap_implementation, transform
from autoddp.training.leaves import DATA
from autoddp.training.parameters.aliases import (
    OF_MEMORY,
    REGION,
    Alias,
    Region,
    written_view,
)
from autoddp.training.parameters.attributes import ANSWERS, METADATA
from autoddp.training.parameters.graph import SavedParameters, compute_wholes, whole_of
from autoddp.training.parameters.layout import is_dense
from autoddp.training.parameters.replaced import become_plain, join_graph
from autoddp.training.parameters.shard import (
    CLASS,
    HELD,
    Held,
    ShardedParameter,
    ShardedState,
    held,
    is_shard,
    refuse_below,
    state_of,
    written,
)
from autoddp.training.parameters.shardwise import (
    COPIES,
    LISTS,
    NOT_SHARDWISE,
    reduce_shards,
    run_on_shards,
)
from autoddp.training.parameters.wholes import (
    address,
    byte_offset,
    with_versions,
    within,
)
from autoddp.view import dispatch as view_dispatch
from autoddp.view.aliases import version
from autoddp.view.containers import leaves_in
from autoddp.view.sharded_tensor import WRITTEN
from autoddp.view.table import in_place, original_of, part_of_complex

# the place of an offset in memory among the arguments of functions that have one
STRIDED: dict[Any, int] = dict.fromkeys(
    (Tensor.as_strided, torch.as_strided, torch.as_strided_copy), 3
)
STRIDED |= dict.fromkeys((Tensor.as_strided_scatter, torch.as_strided_scatter), 4)
RESHAPES = {
    getattr(Tensor, f"{name}_")
    for name in ("t", "transpose", "swapdims", "swapaxes", "squeeze", "unsqueeze", "as_strided")
} | {Tensor.resize_, Tensor.resize_as_, Tensor.set_}


def torch_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Implement `__torch_function__` of sharded parameters."""
    func, kwargs = original_of(func) or func, kwargs or {}
    answer = ANSWERS.get(func)
    if answer is not None and is_shard(args[0]):
        return answer(*args, **kwargs)
    if func in METADATA:
        with plain_tensors():
            return func(*args, **kwargs)
    if func in RESHAPES and is_shard(args[0]):
        _refuse_write(args[0], func, args, kwargs)
        with torch.enable_grad():
            compute_wholes(args[:1])
        if is_shard(args[0]):
            _become_whole(args[0])
        return func(*args, **kwargs)
    for rule in (run_on_shards, reduce_shards):
        out = rule(func, args, kwargs)
        if out is not NOT_SHARDWISE:
            return out
    compute_wholes(leaves_in(args, kwargs))
    out = on_wholes(func, args, kwargs)
    if func in COPIES and type(out) is Tensor and is_shard(args[0]) and is_dense(out):
        mine = held(args[0])  # the copy is of another memory format
        return state_of(mine.wholes.shard(out, mine.layout.group))
    return out


def _become_whole(x: Any) -> None:
    """Let a tensor whose shape is about to change be a whole: a parameter, or a view of one."""
    mine = held(x)
    if isinstance(x, nn.Parameter):
        mine.wholes.replicated(x, "the shape of one changes in place")
        become_plain(x, mine.wholes.plain(mine).clone())
        return
    whole = mine.wholes.separate(mine)
    with plain_tensors():
        swap_implementation(x, whole.detach())
        CLASS.__set__(x, Alias)
    del x.__dict__[HELD]
    x.__dict__[REGION] = Region(mine, whole)


def on_wholes(func: Any, args: Any, kwargs: dict[str, Any], hooks: bool = True) -> Any:
    """Call `func` with gathered tensors, and write into the shards what it has written.

    With `hooks`, what autograd saves of gathered parameters is freed, and gathered again;
    transforms of torch.func refuse hooks.
    """
    found = {id(x): x for x in leaves_in(args, kwargs) if is_shard(x) or type(x) is Alias}
    if not found:
        return func(*args, **kwargs)
    if args and (in_place(func) or func in RESHAPES):
        for x in args[0] if type(args[0]) in LISTS else args[:1]:
            if id(x) in found:
                _refuse_write(x, func, args, kwargs)
    aliases = [x for x in found.values() if type(x) is Alias]
    regions = {id(x): x.__dict__[REGION] for x in aliases}
    for x in aliases:  # plain meanwhile: another object would be another node of the graph
        CLASS.__set__(x, Tensor)
    try:
        return _called(func, args, kwargs, found, regions, hooks and not transform())
    finally:
        for x in aliases:
            CLASS.__set__(x, Alias)


def _called(
    func: Any,
    args: Any,
    kwargs: dict[str, Any],
    found: dict[int, Any],
    regions: dict[int, Region],
    hooks: bool,
) -> Any:
    given: dict[int, Tensor] = {}
    for key, x in found.items():
        if key in regions:
            regions[key].refresh()
            given[key] = x
        else:
            given[key] = whole_of(held(x).wholes, held(x))
    before = {key: version(x) for key, x in given.items()}

    def whole(x: Any) -> Any:
        return given.get(id(x), x)

    if any(type(x) in (list, tuple, dict) for x in (*args, *kwargs.values())):
        args, kwargs = tree_map(whole, (args, kwargs))
    else:
        args, kwargs = tuple(map(whole, args)), {k: whole(x) for k, x in kwargs.items()}
    first = next(iter(found))
    if STRIDED.get(func) == 3:
        _refuse_outside(func, args, kwargs, regions.get(first), found[first])
    if func in STRIDED:
        start = byte_offset(regions[first].whole if first in regions else given[first])
        args, kwargs = _from_start(func, args, kwargs, start // given[first].element_size())
    mine = regions[first].of if first in regions else held(found[first])
    hooks = hooks and SavedTensors.nest and torch.is_grad_enabled()
    with SavedParameters(mine.wholes) if hooks else nullcontext():
        out = func(*args, **kwargs)
    for key, x in found.items():
        if version(given[key]) != before[key]:
            region = regions.get(key)
            _write_back(region.of if region else held(x), given[key], region)
            join_graph(region.of if region else held(x), region.whole if region else given[key])
    return _aliased(out, found, given, regions)


def _refuse_outside(func: Any, args: Any, kwargs: Any, region: Region | None, x: Any) -> None:
    """Raise torch's error for a view beyond a parameter: a gathered one has others beside it."""
    mine = region.of if region else held(x)
    like = torch.empty(mine.layout.shape.numel(), dtype=mine.local.dtype, device="cpu")
    with plain_tensors(), torch.no_grad():
        start = region.offset(x) if region else 0
        memory = torch.empty(0, dtype=x.dtype, device="cpu").set_(like.untyped_storage())
        func(memory.as_strided(x.size(), x.stride(), start), *args[1:], **kwargs)


def _from_start(func: Any, args: Any, kwargs: dict[str, Any], start: int) -> tuple[Any, Any]:
    """Return arguments whose offset is that of a parameter in the memory of its unit."""
    place = STRIDED[func]
    if len(args) > place and args[place] is not None:
        return (*args[:place], args[place] + start, *args[place + 1 :]), kwargs
    if kwargs.get("storage_offset") is not None:
        return args, {**kwargs, "storage_offset": kwargs["storage_offset"] + start}
    return args, kwargs


def _refuse_write(x: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise what torch does for a leaf, or a view of one: a gathered tensor is no leaf."""
    if not torch.is_grad_enabled():
        return
    if type(x) is Alias:
        leaf = x.__dict__[REGION].of.local
        with plain_tensors():
            refused = x.requires_grad  # one of `x.data` does not
        if refused and leaf.requires_grad and leaf.is_leaf:
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place "
                "operation."
            )
    elif held(x).local.requires_grad and held(x).local.is_leaf:
        leaf = nn.Parameter(held(x).wholes.plain(held(x)).clone())
        func([leaf] if type(args[0]) in LISTS else leaf, *args[1:], **kwargs)


def _write_back(mine: Held, whole: Tensor, region: Region | None) -> None:
    """Write a whole tensor into the shard of which it was gathered, or a view of it."""
    source = whole if region is None else region.whole
    with torch.no_grad():
        mine.local.copy_(mine.wholes.agreement.cut(source.detach(), mine.layout))
    mine.memory.writes += 1
    if region is not None:
        region.seen = mine.written()
    kept = mine.wholes.kept.get(mine.unit) if mine.unit is not None else None
    if kept is not None and address(source) == address(kept.flat):
        kept.wrote(mine)


def _aliased(
    out: Any, found: dict[int, Any], given: dict[int, Tensor], regions: dict[int, Region]
) -> Any:
    """Note which results are in the memory of a gathered tensor: views, `detach()` and `data`."""
    if type(out) in (tuple, list):
        return type(out)(_aliased(x, found, given, regions) for x in out)
    for key, x in found.items():
        if out is given[key]:
            return x  # an in-place function returns its argument
    if type(out) is not Tensor or out.layout is not torch.strided or transform():
        return out
    memory = address(out)
    for key, x in found.items():
        whole = given[key]
        if address(whole) != memory or not (key in regions or within(out, whole)):
            continue
        out.__dict__[REGION] = regions[key] if key in regions else Region(held(x), whole)
        CLASS.__set__(out, Alias)
        return out
    return out


def torch_dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Compute on whole tensors what reaches these below torch's functions, as an extension does."""
    refuse_below(func, [held(x) for x in leaves_in(args, kwargs or {}) if is_shard(x)])
    return on_wholes(with_versions(func), args, kwargs or {})


def alias_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Compute on whole tensors what is called with views of them."""
    func = original_of(func) or func
    if func in OF_MEMORY and type(args[0]) is Alias:
        return OF_MEMORY[func](args[0])
    out = on_wholes(func, args, kwargs or {})
    if func == DATA.__get__ and type(out) is Alias:  # it has versions of its own
        of = out.__dict__[REGION].of
        out.__dict__[REGION] = Region(of.alias(of.local.data), out.__dict__[REGION].whole)
    return out


_kind: Any  # mypy rejects assigning these methods
for _kind in (ShardedParameter, ShardedState):
    _kind.__torch_function__ = classmethod(torch_function)
    _kind.__torch_dispatch__ = classmethod(torch_dispatch)
_kind = Alias
_kind.__torch_function__ = classmethod(alias_function)
WRITTEN.update({ShardedParameter: written, ShardedState: written, Alias: written_view})
for _kind in (ShardedParameter, ShardedState, Alias):
    _kind.real, _kind.imag = part_of_complex("real"), part_of_complex("imag")
view_dispatch.FIRST.update((ShardedParameter, ShardedState, Alias))
