"""The schema of a call, under which the decision of its rule is cached.

A rule reads the function, the placements and shapes of tensors, and constants; of a float only
whether it is zero.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Buffer, Parameter

from autoddp.torch_internals import FunctionalTensor
from autoddp.view.sharded_tensor import ShardedTensor

BY_VALUE = {
    *(int, str, type(None), EllipsisType, torch.dtype, torch.device, torch.memory_format),
    torch.layout,
}
REPLICATED = {Tensor, Parameter, Buffer, FunctionalTensor}  # the last while a graph is traced
LISTS = {tuple, list, torch.Size}
BOUNDS = {int, type(None)}
# tokens of a schema, for a value or for the start of a group of values
TENSOR, CLOSE, SLICE, KEYWORDS = (object() for _ in range(4))


class NoSchema(Exception):
    """An argument of a type for which no decision is cached."""


def schema_of(func: Any, args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """Return the key of a call in the cache of decisions; None if it is not to be cached."""
    key = [func]
    try:
        for x in (*args, *kwargs.values()) if kwargs else args:
            kind = type(x)
            if kind is ShardedTensor:
                key.append(x.spec)
            elif kind is Parameter or kind is Tensor:
                key.append(TENSOR)
                key.append(x.shape)
            elif kind in BY_VALUE:
                key.append(x)
            else:
                _add(key, x)
        if kwargs:  # f(x, "dim", 1) is not f(x, dim=1)
            key += (KEYWORDS, len(args), *kwargs)
    except NoSchema:
        return None
    return tuple(key)


def _add(key: list[Any], x: Any) -> None:
    """Append what a rule may read of an argument."""
    kind = type(x)
    if kind is ShardedTensor:
        key.append(x.spec)
    elif kind in REPLICATED:
        key += (TENSOR, x.shape)
    elif kind is float or kind is bool:
        key.append((kind, bool(x)))
    elif kind in BY_VALUE:
        key.append(x)
    elif kind in LISTS:
        key.append(kind)
        for item in x:
            _add(key, item)
        key.append(CLOSE)
    elif kind is slice:
        bounds = x.start, x.stop, x.step
        if not BOUNDS.issuperset(map(type, bounds)):
            raise NoSchema  # a tensor counts by its value: `x[:, :lengths.max()]`
        key += (SLICE, *bounds)
    else:
        raise NoSchema
