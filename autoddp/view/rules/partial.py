"""The rules that keep an unread sum unread: scaling it, adding and subtracting."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor

from autoddp.view.redistribute import lend
from autoddp.view.sharded_tensor import Partial

MUL = {"mul", "multiply", "__mul__", "__rmul__"}
DIV = {"div", "divide", "true_divide", "__truediv__"}
ADD = {"add", "__add__", "__radd__", "__iadd__", "add_"}
SUB = {"sub", "subtract", "__sub__"}
INTO_ADD = {"__iadd__", "add_"}
INTO_MUL = {"__imul__", "mul_"}
INTO_DIV = {"__idiv__", "__itruediv__", "div_"}
NEG = {"neg", "negative", "__neg__"}


def unread(x: Any) -> TypeGuard[Partial]:
    """Return whether `x` is a sum of which each rank knows its part, still unread."""
    return type(x) is Partial and x.unread


def _number(x: Any) -> bool:
    if isinstance(x, bool):
        return False
    return isinstance(x, (int, float)) or (type(x) is Tensor and x.dim() == 0)


def linear(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute a pointwise function of a `Partial`: linear ones act on the parts."""
    name = func.__name__
    if kwargs or not 1 <= len(args) <= 2:
        return NotImplemented
    x, y = args[0], args[1] if len(args) == 2 else None
    if name in NEG and unread(x):
        return _like(x, None, -x.local)
    if name in (*INTO_MUL, *INTO_DIV) and unread(x) and _number(y):
        factor = lend(y, x.owner.group)
        return _into(x, _like(x, y, x.local * factor if name in INTO_MUL else x.local / factor))
    if name in MUL and y is not None:
        a, b = (x, y) if unread(x) else (y, x)
        return (
            _like(a, b, a.local * lend(b, a.owner.group))
            if unread(a) and _number(b)
            else NotImplemented
        )
    if name in DIV and unread(x) and _number(y):
        return _like(x, y, x.local / lend(y, x.owner.group))
    if name == "__rsub__":
        x, y = y, x
    if name in ADD:
        out = _sum(x, y, 1)
        return _into(x, out) if name in INTO_ADD else out
    return _sum(x, y, -1) if name in SUB or name == "__rsub__" else NotImplemented


def _into(x: Any, out: Any) -> Any:
    """Put `out` into `x` for `loss += term`, `loss /= 4`: the same tensor goes on, unread."""
    if out is NotImplemented or not unread(x) or x.dtype != out.dtype or x._value is not None:
        return NotImplemented
    x.local, x._part, x._node = out.local, out._part, out._node
    return x


def _sum(x: Any, y: Any, sign: int) -> Any:
    known = x if unread(x) else y
    if not unread(known):
        return NotImplemented
    a, b = _part(x, known), _part(y, known)
    if a is None or b is None:
        return NotImplemented
    return _like(known, y if known is x else x, a + b if sign > 0 else a - b)


def _part(x: Any, known: Partial) -> Any:
    """Return this rank's part of a term, None for what is no number.

    A float is shared out over the ranks, as an int is that meets floats; any other number lies with
    rank 0.
    """
    if unread(x):
        return x.local
    if not _number(x):
        return None
    group = known.owner.group
    if isinstance(x, float) or (isinstance(x, Tensor) and x.dtype.is_floating_point):
        return x / group.size
    if known.local.is_floating_point() and isinstance(x, int):
        return x / group.size
    return x * (group.rank == 0)


def _like(known: Partial, other: Any, local: Tensor) -> Any:
    """Wrap `local` in a `Partial` of the dtype that plain tensors would have given."""
    if known.declared == known.local.dtype and not isinstance(other, Partial):
        return Partial(local, known.owner)
    if other is None or isinstance(other, (int, float)):
        return Partial(local, known.owner, known.declared)
    if isinstance(other, Partial) and other.declared == known.declared:
        return Partial(local, known.owner, known.declared)
    if (
        isinstance(other, Partial)
        and other.declared == other.local.dtype
        and known.declared == known.local.dtype
    ):
        return Partial(local, known.owner)
    return NotImplemented


def copies(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copy or cast an unread sum, which stays unread."""
    me = args[0]
    if not unread(me) or len(args) > 1 or kwargs:
        return NotImplemented
    dtype = {"float": torch.float32, "double": torch.float64}.get(func.__name__, me.declared)
    if func.__name__ not in ("detach", "clone", "float", "double"):
        return NotImplemented
    return Partial(func(me.local), me.owner, dtype, me._part)
