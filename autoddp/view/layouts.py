"""The layout of results of which some rank has a single row.

torch leaves the stride of a dimension of size 1 open, and its kernels take any, but the whole batch
is drawn for, viewed and copied by that stride. Each result therefore gets the stride that its row
has in the whole, from which `whole_strides` tells those of the whole. It follows from the whole
layouts of the arguments, which all ranks know: torch makes a view of a tensor without memory, an
elementwise function keeps the layout of its arguments, and rows that are outermost stay so.
Otherwise a rehearsal on the whole batch shows the layout, once for each kind of call; it leaves no
graph and no draws behind, so that the call itself is always the same: a checkpoint repeats it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from autoddp.torch_internals import plain_tensors
from autoddp.view.containers import is_shape, leaves_in
from autoddp.view.schema import schema_of
from autoddp.view.shard_sizes import Spec, local_strides, whole_strides
from autoddp.view.sharded_tensor import ShardedTensor, wrap

if TYPE_CHECKING:
    from autoddp.view.local_call import LocalCall

MAX_LAYOUTS = 16384
Strides = tuple[int, ...]


class Layout(NamedTuple):
    """The strides of the wholes of a call's results, and of what is drawn for in the call.

    Those of the results are None if the rows are outermost, or if nothing is known.
    """

    results: list[Strides | None] | None
    drawn: list[Strides]


def layout_of(call: LocalCall, func: Any, args: Any, kwargs: dict[str, Any]) -> Layout | None:
    """Return the layout of a call's results; None if a call on the whole has to show it."""
    outs = call.out if isinstance(call.out, list) else [call.out]
    if call.aliases:
        return Layout(_of_view(func, args, kwargs), [])
    given = [x for x in leaves_in(args, kwargs) if isinstance(x, Tensor) and x.dim()]
    with plain_tensors():
        alike = {(x.shape, steps(x)) for x in given}
        first = next(x for x in given if type(x) is ShardedTensor)
        dense = torch.ops.aten.is_non_overlapping_and_dense(_meta(first))
        if call.keeps_layout and len(alike) == 1 and dense:
            return Layout([first.stride()], [])
        sharded = [x for x in given if type(x) is ShardedTensor]
        first_in_memory = all(x.spec.dim == 0 and rows_are_outermost(x) for x in sharded)
        plain = all(type(x) is ShardedTensor or x.is_contiguous() for x in given)
    stays = all(place is None or not place[0] for place in outs) and not call.reorders
    known = first_in_memory and plain and stays and (dense or not call.draws)
    return Layout(None, []) if known else None


def _of_view(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Strides | None]:
    """Return the strides of views of the first argument's whole, or of a copy of it.

    Raises:
        RuntimeError: torch's own, if the whole has no such view: a single row often has.
    """
    with plain_tensors():
        whole = _meta(args[0])
    try:
        made = func(whole, *args[1:], **kwargs)
    except NotImplementedError:
        made = whole.clone()  # a tensor without memory cannot be copied to a device
    outs = made if isinstance(made, (tuple, list)) else [made]
    return [x.stride() if isinstance(x, Tensor) else None for x in outs]  # `x.type()` is a string


def _meta(x: Tensor) -> Tensor:
    """Return a tensor without memory, with the layout of the whole of `x`."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def rows_are_outermost(x: Tensor) -> bool:
    """Return whether dimension 0 has the largest stride, and no dimension is expanded."""
    rest = [step for n, step in zip(x.shape[1:], x.stride()[1:], strict=True) if n > 1]
    return x.stride(0) > max(rest, default=0) and min(rest, default=1) > 0


def run_single(call: LocalCall, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a call whose results have a single row on some rank."""
    kwargs = kwargs or {}
    view, key = call.sizes.view, _key(call, func, args, kwargs)
    layout = None if key is None else view.layouts.get(key)
    if layout is None:
        layout = layout_of(call, func, args, kwargs) or _rehearsed(call, func, args, kwargs)
        if len(view.layouts) >= MAX_LAYOUTS:
            view.layouts.clear()
        if key is not None:
            view.layouts[key] = layout
    given, named = call.local_arguments(args, kwargs)
    out = call.compute(func, given, named, layout.drawn)
    me: Any = args[call.shards[0]] if call.shards else None
    if me is not None and out is me._local:
        return me
    if not isinstance(out, (Tensor, tuple, list)):
        return out
    several = isinstance(out, (tuple, list))
    outs, specs = (out if several else [out]), call.specs or call.specs_of(out)
    strides = layout.results or [None]
    strides = strides * len(outs) if len(strides) == 1 else strides
    laid = [
        x if spec is None else laid_out(x, spec, known, not call.aliases)
        for x, spec, known in zip(outs, specs if several else [specs], strides, strict=True)
    ]
    if several:
        return call.several(type(out)(laid), me, func, args, kwargs)
    return (
        call.view(laid[0], specs, me, func, args, kwargs) if call.aliases else wrap(laid[0], specs)
    )


def _key(call: LocalCall, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the key under which the layout of a call is kept; all ranks find it, or none does."""
    schema = schema_of(func, args, kwargs)
    if schema is None:
        return None
    with plain_tensors():
        given = [x for x in leaves_in(args, kwargs) if isinstance(x, Tensor)]
        return schema, *map(steps, given)


def steps(x: Tensor) -> Strides:
    """Return the strides of dimensions that have several elements: ranks agree on these alone."""
    return tuple(step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1)


def laid_out(out: Tensor, spec: Spec, strides: Strides | None, fresh: bool) -> Tensor:
    """Return a local result with the row's stride in the whole; a fresh one in its layout."""
    if out.layout is not torch.strided or not out.numel():
        return out
    dim, sizes = spec.dim, spec.sizes
    if strides is None:
        if dim:
            return out
        rest = zip(out.shape[1:], out.stride()[1:], strict=True)
        row = max((n * step for n, step in rest), default=1)
    else:
        row = strides[dim]
    if sizes.local == 1 and out.stride(dim) != row:
        out = out.as_strided(out.shape, (*out.stride()[:dim], row, *out.stride()[dim + 1 :]))
    if not fresh or strides is None:
        return out
    if whole_strides(out.shape, out.stride(), dim, sizes) == strides:
        return out
    mine = local_strides(strides, dim, sizes)
    return torch.empty_strided(out.shape, mine, dtype=out.dtype, device=out.device).copy_(out)


def _rehearsed(call: LocalCall, func: Any, args: Any, kwargs: dict[str, Any]) -> Layout:
    """Call `func` on the whole batch, without gradients, and return the layout of the results."""
    with torch.no_grad():
        given, named = tree_map(
            lambda x: x.full() if type(x) is ShardedTensor else x, (args, kwargs), is_leaf=is_shape
        )
        out, drawn = call.rehearse(func, given, named)
    outs = out if isinstance(out, (tuple, list)) else [out]
    return Layout([x.stride() if isinstance(x, Tensor) else None for x in outs], drawn)
