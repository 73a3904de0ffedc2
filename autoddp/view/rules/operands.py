"""The operands that meet rows: what this rank needs of each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from autoddp.torch_internals import plain_tensors
from autoddp.view.boundaries import lend, part
from autoddp.view.cuts import Cuts
from autoddp.view.rows import Rows, full, split

PLAIN = plain_tensors
UNCLEAR = object()


def operand(x: Any, cuts: Cuts, at: int, ndim: int) -> Any:
    """Return `x` as it meets rows by broadcasting.

    The result has `ndim` dimensions, the batch at `at`. Rows with the same cuts give their local
    part; a whole tensor gives this rank's rows of it, or itself where it broadcasts. UNCLEAR where
    none of this is certain.
    """
    behind = ndim - at  # dimensions from the batch on: broadcasting aligns the last ones
    if split(x):
        return x.local if x.cuts is cuts and x.dim() - x.at == behind else UNCLEAR
    x = full(x)
    if not isinstance(x, Tensor):
        return UNCLEAR if getattr(x, "ndim", 0) else x  # an array of numpy's has all rows
    if x.layout is not torch.strided:
        return UNCLEAR
    dim = x.dim() - behind
    if dim < 0 or x.shape[dim] == 1 != cuts.total:
        return lend(x, cuts.view.group)
    return part(x, cuts, dim) if x.shape[dim] == cuts.total else UNCLEAR


def whole_operand(x: Any, cuts: Cuts) -> Any:
    """Return a weight or setting, which every row meets in full; UNCLEAR for a batch."""
    if split(x):
        return UNCLEAR
    x = full(x)
    return lend(x, cuts.view.group) if isinstance(x, Tensor) else x


def rewrap(out: Any, cuts: Cuts, at: int) -> Any:
    """Wrap tensors that came of this rank's rows as rows."""
    return tree_map(lambda o: Rows(o, cuts, at) if isinstance(o, Tensor) else o, out)


def related(me: Rows, out: Tensor, at: int | None = None, cuts: Cuts | None = None) -> Rows:
    """Return rows that may share memory with `me`; `me` itself if nothing changed."""
    if out is me._local:
        return me
    place = me.at if at is None else at
    if place == me.at == 0 and len(out) == 1 < me.cuts.total:
        out = _outermost(me._local, out)
    return Rows(out, cuts or me.cuts, place, me.family)


def _outermost(before: Tensor, view: Tensor) -> Tensor:
    """Return a view of one row that lies in memory as of several.

    torch gives the batch of one row any stride, and where that is no longer the largest, kernels
    take it for another layout than that of one process, in whose order they draw.
    """
    if view.layout is not torch.strided or len(before) != 1 or before.stride(0) < _span(before):
        return view
    span = _span(view)
    if view.stride(0) >= span:
        return view
    return view.as_strided(view.shape, (span, *view.stride()[1:]))


def _span(x: Tensor) -> int:
    """Return how many elements of memory a row spans, to its next one."""
    return max((n * step for n, step in zip(x.shape[1:], x.stride()[1:], strict=True)), default=1)


def bound(names: tuple[str, ...], args: Any, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments by name, None if more are positional than there are `names`."""
    if len(args) > len(names):
        return None
    return dict(zip(names, args, strict=False)) | kwargs
