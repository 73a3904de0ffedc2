"""What is changed for a run that a comparison takes: the pace of the clocks, or float64."""

from __future__ import annotations

import functools
import os
import sys
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from autoddp.patching import Feature, Installation, patch, stands_for
from autoddp.report import library_modules

PACE = 100_000  # at which no duration or rate looks like that of another run
WHY = "what is printed of a clock is another text at another pace"
LIBRARY = os.path.dirname(os.__file__) + os.sep
FLOAT32 = torch.float32
# Torch's tables that checkpoints are written by.
TABLES = ("_dtype_to_storage_type_map", "_storage_type_to_dtype_map")
# Functions whose tensors have the type of what they are given, or of what a file holds.
MAKERS = ("from_numpy", "as_tensor", "tensor", "frombuffer", "load")


def other_pace(undo: ExitStack) -> None:
    """Let clocks run faster, to see which of what is printed or written is of a clock.

    Two runs of one process may take the same time by chance, to the digits that are printed.
    """
    undo.enter_context(Installation([FasterClocks()], libraries=library_modules))


class FasterClocks(Feature):
    """Clocks that run faster since the run began, for all but what waits by them.

    The time of day needs no such thing: this run comes after the ranks', so that it has another one
    where they had.
    """

    name: ClassVar[str] = "faster clocks"
    libraries: ClassVar[bool] = True

    @patch(
        *("time:time", "time:time_ns", "time:monotonic", "time:monotonic_ns"),
        *("time:perf_counter", "time:perf_counter_ns", "timeit:default_timer"),
        *("time:process_time", "time:process_time_ns"),
        why=WHY,
        hot=True,
    )
    def read(self, original: Any) -> Any:
        """Make a clock that runs faster; the standard library waits by a monotonic one."""
        began, waits, frame = original(), "monotonic" in original.__name__, sys._getframe

        @stands_for(original)
        def read() -> Any:
            if waits and frame(1).f_code.co_filename.startswith(LIBRARY):
                return original()
            return began + PACE * (original() - began)

        return read


def float64(undo: ExitStack) -> None:
    """Make float64 the default, and have `float32`, `.float()`, arrays and files give float64.

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


def _wide(x: Tensor) -> Tensor:
    return x.double() if x.dtype == FLOAT32 else x


def _widened(make: Any) -> Any:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        return tree_map_only(Tensor, _wide, make(*args, **kwargs))

    return made


def _put(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
