"""Indices that leave all rows: what they take from a row, and what is written there."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autoddp.view.rows import Partial, Rows, split
from autoddp.view.rules.operands import UNCLEAR, operand, related
from autoddp.view.table import rule


@rule("__getitem__")
def getitem(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Index all rows and anything before or behind: `x[:, 0]`, `x[..., 1:]`, `x[:, None]`."""
    me, index = args
    found = _of_all_rows(me, index) if split(me) else None
    if found is None:
        return NotImplemented
    items, at = found
    return related(me, me.local[items], at)


@rule("__setitem__")
def setitem(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Write a number, or what belongs to the same rows, into all rows: `x[:, 0] = 1`."""
    me, index, value = args
    found = _of_all_rows(me, index) if split(me) else None
    if found is None or isinstance(value, Partial):
        return NotImplemented
    items, at = found
    place = me.local[items]
    if isinstance(value, Tensor):
        value = operand(value, me.cuts, at, place.dim()) if value.dim() <= place.dim() else UNCLEAR
    if value is UNCLEAR or not isinstance(value, (bool, int, float, Tensor)):
        return NotImplemented
    func(me.local, items, value)
    return None


def _of_all_rows(me: Rows, index: Any) -> tuple[tuple[Any, ...], int] | None:
    """Return an index that leaves all rows, written out, and where it puts the batch; else None."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not all(i is None or i is Ellipsis or type(i) in (int, slice) for i in items):
        return None
    taken = sum(i is not None and i is not Ellipsis for i in items)
    if items.count(Ellipsis) == 0:
        items.append(Ellipsis)
    if taken > me.dim() or items.count(Ellipsis) > 1:
        return None
    spread = items.index(Ellipsis)
    items[spread : spread + 1] = [slice(None)] * (me.dim() - taken)
    place = [k for k, item in enumerate(items) if item is not None][me.at]
    if items[place] != slice(None):
        return None
    return tuple(items), sum(type(item) is not int for item in items[:place])
