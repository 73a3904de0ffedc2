"""What is changed for a run that a comparison takes: sums in another order, or in float64."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import Any

import torch

FLOAT32 = torch.float32
# Torch's tables that checkpoints are written by.
TABLES = ("_dtype_to_storage_type_map", "_storage_type_to_dtype_map")
# Functions whose tensors have the type of what they are given.
MAKERS = ("from_numpy", "as_tensor", "tensor", "frombuffer")


def other_order(undo: ExitStack) -> None:
    """Sum over another number of threads, to see how far rounding alone carries a training."""
    torch.set_num_threads(1 if torch.get_num_threads() > 1 else 2)


def float64(undo: ExitStack) -> None:
    """Make float64 the default, and have `float32`, `.float()` and float32 arrays give float64.

    Half precision and autocast stay what they are.
    """
    for table in TABLES:
        # torch makes it once, of the types by their names: now, while the names mean the right ones
        getattr(torch.storage, table)()
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
