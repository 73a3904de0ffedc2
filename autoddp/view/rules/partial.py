"""Functions that keep a partial sum partial: scaling, adding and subtracting."""

from __future__ import annotations

from operator import add, methodcaller, mul, neg, sub, truediv
from typing import Any, TypeGuard

import torch
from torch import Tensor

from autoddp.view.redistribute import with_mean_gradient
from autoddp.view.sharded_tensor import Partial
from autoddp.view.table import in_place

# the linear operation of a function, by its name without underscores
OPS = {
    **dict.fromkeys(("add", "radd", "iadd"), "add"),
    **dict.fromkeys(("sub", "subtract", "isub", "rsub"), "sub"),
    **dict.fromkeys(("mul", "multiply", "rmul", "imul"), "mul"),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv", "idiv", "itruediv"), "div"),
    **dict.fromkeys(("neg", "negative"), "neg"),
}


def unread(x: Any) -> TypeGuard[Partial]:
    """Return whether `x` is a partial sum whose local term is up to date."""
    return type(x) is Partial and x.unread


def _number(x: Any) -> bool:
    if isinstance(x, bool):
        return False
    return isinstance(x, (int, float)) or (type(x) is Tensor and x.dim() == 0)


def linear(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute a pointwise function of a partial sum on its local term, if it is linear."""
    name = func.__name__.strip("_")
    op = OPS.get(name)
    if op is None or kwargs or len(args) > 2:
        return NotImplemented
    x, y = args if len(args) == 2 else (args[0], None)
    if name == "rsub" or (op == "mul" and not unread(x)):
        x, y = y, x
    if op in ("add", "sub"):
        out = _sum(x, y, 1 if op == "add" else -1)
    elif not unread(x) or (not _number(y) if op != "neg" else y is not None):
        return NotImplemented
    elif op == "neg":
        out = _wrapped(x, None, -x.local, neg, x)
    else:
        factor, compute = with_mean_gradient(y, x.owner.group), mul if op == "mul" else truediv
        out = _wrapped(x, y, compute(x.local, factor), compute, x, y)
    return _assign(args[0], out) if in_place(func) else out


def _assign(x: Any, out: Any) -> Any:
    """Assign `out` to `x` for `loss += term` or `loss /= 4`: `x` stays partial."""
    if out is NotImplemented or not unread(x) or x.dtype != out.dtype:
        return NotImplemented
    if x._value is not None or x.shared:  # there is memory to be written into
        return NotImplemented
    x.local, x._part, x._node = out.local, out._part, out._node
    return x


def _sum(x: Any, y: Any, sign: int) -> Any:
    lead = x if unread(x) else y
    if not unread(lead):
        return NotImplemented
    a, b = _term(x, lead), _term(y, lead)
    if a is None or b is None:
        return NotImplemented
    compute = add if sign > 0 else sub
    return _wrapped(lead, y if lead is x else x, compute(a, b), compute, x, y)


def _term(x: Any, lead: Partial) -> Any:
    """Return this rank's share of a term, None if it is not a number.

    Floats, and ints added to floats, are divided by the number of ranks; rank 0 adds other ints.
    """
    if unread(x):
        return x.local
    if not _number(x):
        return None
    group = lead.owner.group
    if isinstance(x, float) or (isinstance(x, Tensor) and x.dtype.is_floating_point):
        return x / group.size
    if lead.local.is_floating_point() and isinstance(x, int):
        return x / group.size
    return x * (group.rank == 0)


def _wrapped(lead: Partial, other: Any, local: Tensor, compute: Any, *operands: Any) -> Any:
    """Wrap `local` in a `Partial` whose dtype is that of plain tensors.

    Its value is what `compute` makes of the values of `operands`.
    """
    sums = [lead, other] if type(other) is Partial else [lead]
    dtype = None
    if not all(x.declared == x.local.dtype for x in sums):
        if type(other) is Tensor or any(x.declared != lead.declared for x in sums):
            return NotImplemented
        dtype = lead.declared
    values = [(x._part, x.declared) if type(x) is Partial else x for x in operands]
    part = lead.owner.pending.compute(compute, values, lead.local)
    return Partial(local, lead.owner, dtype, part)


def copy_or_cast(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copy or cast a partial sum, which stays partial."""
    me = args[0]
    if not unread(me) or len(args) > 1 or kwargs:
        return NotImplemented
    name = func.__name__
    dtype = {"float": torch.float32, "double": torch.float64}.get(name, me.declared)
    if name not in ("detach", "clone", "float", "double"):
        return NotImplemented
    if name == "detach":
        return me.detached()
    if name == "clone":
        return Partial(func(me.local), me.owner, dtype, me._part)
    if dtype == me.declared:
        return me
    cast, values = methodcaller("to", dtype), [(me._part, me.declared)]
    part = me.owner.pending.compute(cast, values, me.local)  # rounded as often as in one process
    return Partial(func(me.local), me.owner, dtype, part)
