"""The arguments of a call by torch's own names for them, with the values left out filled in."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx.operator_schemas import get_signature_for_torch_op
from torch.nn import functional as F  # the field's name for it

LISTS = (tuple, list)


def arguments(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, in torch's order; empty if no signature takes them.

    A function in Python has one signature, an operator has one for each of its overloads.
    """
    for signature in _signatures(func):
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            continue
        if all(_fits(signature.parameters[k].annotation, v) for k, v in given.arguments.items()):
            given.apply_defaults()
            return dict(given.arguments)
    return {}


@cache
def _signatures(func: Any) -> tuple[inspect.Signature, ...]:
    if inspect.isfunction(func):
        # F.max_pool2d is two functions, of which this one tells the arguments of both
        known = getattr(F, f"{func.__name__}_with_indices", func)
        return (inspect.signature(known),)
    packet = getattr(torch.ops.aten, getattr(func, "__name__", ""), None)
    return () if packet is None else tuple(get_signature_for_torch_op(packet) or ())


def _fits(kind: Any, value: Any) -> bool:
    """Return whether a value is one that an overload takes: `x.var(1)` and `x.var(False)` differ.

    Python's own functions have texts for annotations, or none: they take whatever comes.
    """
    if isinstance(kind, str) or kind is inspect.Parameter.empty:
        return True
    if isinstance(value, Tensor) or kind is Tensor:
        return isinstance(value, Tensor) and "Tensor" in str(kind)
    if kind is bool:
        return type(value) is bool
    if kind is int or "List[int]" in str(kind):
        return type(value) is int or value is None or isinstance(value, LISTS)
    return True


def dim_of(value: Any, ndim: int) -> int | None:
    """Return a dimension counted from 0, None if `value` is none of `ndim` dimensions."""
    return value % ndim if type(value) is int and -ndim <= value < ndim else None


def dims_of(value: Any, ndim: int) -> list[int] | None:
    """Return one dimension or several as a list counted from 0, None if `value` is not that."""
    listed = value if isinstance(value, LISTS) else [value]
    found = [dim_of(d, ndim) for d in listed]
    return None if None in found or not found else found  # type: ignore[return-value]
