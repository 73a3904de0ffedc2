"""A script in float64 that was written for float32: what makes float32 numbers makes float64."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import Any

import torch

FLOAT32 = torch.float32
TABLES = ("_dtype_to_storage_type_map", "_storage_type_to_dtype_map")  # what checkpoints are written by
MAKERS = ("from_numpy", "as_tensor", "tensor", "frombuffer")  # what takes the type of what it is given


def setup(undo: ExitStack) -> None:
    """The default is float64, and `float32` by its names, `.float()` and arrays of it become float64.

    Half precision and autocast stay what they are.
    """
    for table in TABLES:
        getattr(torch.storage, table)()  # made of the types by their names, once: with the right ones
    undo.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float64)
    _put(undo, torch.Tensor, "float", torch.Tensor.double)
    _put(undo, torch.nn.Module, "float", torch.nn.Module.double)
    for name in ("float32", "float"):
        _put(undo, torch, name, torch.float64)
    _put(undo, torch, "FloatTensor", torch.DoubleTensor)
    for name in MAKERS:
        _put(undo, torch, name, _widened(getattr(torch, name)))


def _widened(make: Any) -> Any:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        found = make(*args, **kwargs)
        return found.double() if found.dtype == FLOAT32 else found

    return made


def _put(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
